// quic-go's client and server, which say in lines of JSON what happened.
//
//	quic-go client -port PORT -cacert FILE [-session FILE] [-early] [-times N]
//	               [-name NAME] [-ech CONFIGS] PATH
//	quic-go server -cert FILE -key FILE [-ticket-key N] [-retry] [-no-early]
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// How long a ticket and a token may take after the response.
const timeout = 5 * time.Second

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("usage: quic-go client|server FLAGS"))
	}
	var err error
	switch os.Args[1] {
	case "client":
		err = client(os.Args[2:])
	case "server":
		err = server(os.Args[2:])
	default:
		err = fmt.Errorf("%q is neither client nor server", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
}

func client(args []string) error {
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	port := flags.Int("port", 0, "the server's port on 127.0.0.1")
	cacert := flags.String("cacert", "", "certificate to trust")
	session := flags.String("session", "", "a session to resume, and where it is kept")
	early := flags.Bool("early", false, "send the request as early data")
	times := flags.Int("times", 1, "connections, one after another, which share address tokens")
	name := flags.String("name", "localhost", "the server's name")
	ech := flags.String("ech", "", "an ECHConfigList in base64, to encrypt the ClientHello by")
	flags.Parse(args)

	configs, err := base64.StdEncoding.DecodeString(*ech)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(*cacert)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	visitor := visitor{
		address:  fmt.Sprintf("127.0.0.1:%d", *port),
		name:     *name,
		ech:      configs,
		roots:    roots,
		sessions: &sessionFile{path: *session, kept: make(chan struct{}, 1)},
		tokens:   &tokenStore{quic.NewLRUTokenStore(1, 8), make(chan struct{}, 1)},
	}
	for left := *times; left > 0; left-- {
		if err := visitor.fetch(flags.Arg(0), *early, left > 1); err != nil {
			return err
		}
	}
	return nil
}

// What connections have in common.
type visitor struct {
	address  string
	name     string
	ech      []byte
	roots    *x509.CertPool
	sessions *sessionFile
	tokens   *tokenStore
}

// One request on a connection of its own. With another one to follow, it waits for a token too.
func (v *visitor) fetch(path string, early, follows bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	counts := &trace{}
	settings := &quic.Config{TokenStore: v.tokens, Tracer: counts.start}
	tlsSettings := &tls.Config{
		RootCAs:            v.roots,
		ServerName:         v.name,
		NextProtos:         []string{http3.NextProtoH3},
		ClientSessionCache: v.sessions,
	}
	if len(v.ech) > 0 {
		tlsSettings.EncryptedClientHelloConfigList = v.ech
	}
	conn, err := quic.DialAddrEarly(ctx, v.address, tlsSettings, settings)
	if err != nil {
		return err
	}
	method := http.MethodGet
	if early {
		method = http3.MethodGet0RTT
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+v.name+path, nil)
	if err != nil {
		return err
	}
	status, body, err := roundTrip(conn, request)
	if err != nil && early && !conn.ConnectionState().Used0RTT {
		// The library resets the stream that it would send the request again on
		// (Conn.NextConnection), so it goes on a connection of its own.
		say(map[string]any{"refused": true})
		if err := v.awaitTicket(ctx, conn, tlsSettings, settings); err != nil {
			return err
		}
		return v.fetch(path, false, follows)
	}
	if err != nil {
		return err
	}
	wait(v.sessions.kept)
	if follows {
		wait(v.tokens.kept)
	}
	state := conn.ConnectionState()
	say(map[string]any{
		"status":      status,
		"body":        string(body),
		"resumed":     state.TLS.DidResume,
		"early":       state.Used0RTT,
		"ech":         state.TLS.ECHAccepted,
		"retries":     counts.retries.Load(),
		"key_updates": counts.keyUpdates.Load(),
	})
	return conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}

// Waits for the new ticket of a connection whose early data was refused, and closes it.
//
// http3 opens its control stream in the background, and where the refusal is faster, it closes the
// connection, often before the ticket. Then one without HTTP fetches a ticket.
func (v *visitor) awaitTicket(
	ctx context.Context, conn *quic.Conn, tlsSettings *tls.Config, settings *quic.Config,
) error {
	select {
	case <-v.sessions.kept:
		return conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
	case <-time.After(timeout):
		return errors.New("no ticket after refused early data")
	case <-conn.Context().Done():
	}
	var closed *quic.ApplicationError
	ended := context.Cause(conn.Context())
	if !errors.As(ended, &closed) || closed.Remote ||
		closed.ErrorCode != quic.ApplicationErrorCode(http3.ErrCodeInternalError) {
		return ended
	}
	conn, err := quic.DialAddr(ctx, v.address, tlsSettings, settings)
	if err != nil {
		return err
	}
	wait(v.sessions.kept)
	return conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}

func roundTrip(conn *quic.Conn, request *http.Request) (int, []byte, error) {
	transport := &http3.Transport{}
	response, err := transport.NewClientConn(conn).RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

func server(args []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	cert := flags.String("cert", "", "certificate")
	key := flags.String("key", "", "private key")
	ticketKey := flags.Int("ticket-key", 0, "which key seals tickets")
	retry := flags.Bool("retry", false, "have each client without a token show its address")
	noEarly := flags.Bool("no-early", false, "refuse early data")
	flags.Parse(args)

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return err
	}
	tlsSettings := &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{http3.NextProtoH3},
	}
	tlsSettings.SetSessionTicketKeys([][32]byte{{byte(*ticketKey)}})
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	var retries atomic.Int64
	transport := &quic.Transport{
		Conn: socket,
		// A token from an earlier connection, or from a Retry, has shown the address already.
		VerifySourceAddress: func(net.Addr) bool {
			if *retry {
				retries.Add(1)
			}
			return *retry
		},
	}
	counts := &trace{tells: true}
	settings := &quic.Config{Allow0RTT: !*noEarly, Tracer: counts.start}
	listener, err := transport.ListenEarly(tlsSettings, settings)
	if err != nil {
		return err
	}
	type connKey struct{}
	http3Server := http3.Server{
		ConnContext: func(ctx context.Context, conn *quic.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		Handler: http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
			length, _ := io.Copy(io.Discard, request.Body)
			state := request.Context().Value(connKey{}).(*quic.Conn).ConnectionState()
			say(map[string]any{"request": map[string]any{
				"method":  request.Method,
				"path":    request.URL.Path,
				"body":    length,
				"resumed": state.TLS.DidResume,
				"early":   state.Used0RTT,
				"retries": retries.Load(),
			}})
			body := fmt.Sprintf("%s %s %d\n", request.Method, request.URL.Path, length)
			if count, ok := strings.CutPrefix(request.URL.Path, "/long/"); ok {
				count, _ := strconv.Atoi(count)
				body = strings.Repeat("x", count)
			}
			io.WriteString(out, body)
		}),
	}
	say(map[string]any{"port": socket.LocalAddr().(*net.UDPAddr).Port})
	return http3Server.ServeListener(listener)
}

// Counts of one connection, by what the library logs.
type trace struct {
	// Whether each key update is said at once.
	tells      bool
	keyUpdates atomic.Int64
	retries    atomic.Int64
}

func (t *trace) start(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return t }

func (t *trace) AddProducer() qlogwriter.Recorder { return t }

func (t *trace) SupportsSchemas(schema string) bool { return schema == qlog.EventSchema }

func (t *trace) Close() error { return nil }

func (t *trace) RecordEvent(event qlogwriter.Event) {
	switch event := event.(type) {
	case qlog.KeyUpdated:
		// There is one for each direction.
		if event.KeyType == qlog.KeyTypeClient1RTT && event.Trigger != qlog.KeyUpdateTLS {
			t.keyUpdates.Add(1)
			if t.tells {
				say(map[string]any{"key_update": event.Trigger})
			}
		}
	case qlog.PacketReceived:
		if event.Header.PacketType == qlog.PacketTypeRetry {
			t.retries.Add(1)
		}
	}
}

// A session in a file.
type sessionFile struct {
	path string
	kept chan struct{}
}

func (f *sessionFile) Get(string) (*tls.ClientSessionState, bool) {
	bytes, err := os.ReadFile(f.path)
	if err != nil || len(bytes) < 2 {
		return nil, false
	}
	length := int(bytes[0])<<8 | int(bytes[1])
	state, err := tls.ParseSessionState(bytes[2+length:])
	if err != nil {
		fail(err)
	}
	session, err := tls.NewResumptionState(bytes[2:2+length], state)
	return session, err == nil
}

func (f *sessionFile) Put(_ string, session *tls.ClientSessionState) {
	if session == nil {
		// It is not to be used again.
		os.Remove(f.path)
		return
	}
	defer note(f.kept)
	if f.path == "" {
		return
	}
	ticket, state, err := session.ResumptionState()
	if err != nil {
		fail(err)
	}
	bytes, err := state.Bytes()
	if err != nil {
		fail(err)
	}
	head := append([]byte{byte(len(ticket) >> 8), byte(len(ticket))}, ticket...)
	if err := os.WriteFile(f.path, append(head, bytes...), 0o600); err != nil {
		fail(err)
	}
}

// Tokens, and when one came.
type tokenStore struct {
	quic.TokenStore
	kept chan struct{}
}

func (s *tokenStore) Put(key string, token *quic.ClientToken) {
	s.TokenStore.Put(key, token)
	note(s.kept)
}

func note(kept chan struct{}) {
	select {
	case kept <- struct{}{}:
	default:
	}
}

func wait(kept chan struct{}) {
	select {
	case <-kept:
	case <-time.After(timeout):
	}
}

var out sync.Mutex

func say(entry any) {
	out.Lock()
	defer out.Unlock()
	line, _ := json.Marshal(entry)
	os.Stdout.Write(append(line, '\n'))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
