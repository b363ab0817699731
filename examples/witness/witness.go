// A witness for `firstflight audit --witness`: counts how often each request was executed.
//
// Give Witness to a path of a Go server, in one process, or run it: go run witness.go 9099
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"sync"
)

// Witness counts requests by their query. It forgets all when it has seen 10,000.
type Witness struct {
	mutex  sync.Mutex
	counts map[string]int
}

func (witness *Witness) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	witness.mutex.Lock()
	if witness.counts == nil || len(witness.counts) >= 10_000 {
		witness.counts = map[string]int{}
	}
	witness.counts[request.URL.RawQuery]++
	executions := witness.counts[request.URL.RawQuery]
	witness.mutex.Unlock()

	var earlyData *string
	if value := request.Header.Get("Early-Data"); value != "" {
		earlyData = &value
	}
	response.Header().Set("Content-Type", "application/json")
	response.Header().Set("Cache-Control", "no-store")
	json.NewEncoder(response).Encode(map[string]any{
		"executions": executions,
		"early_data": earlyData,
	})
}

func main() {
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], &Witness{}))
}
