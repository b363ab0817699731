# Makes a machine replace Let's Encrypt in a guide: Pebble under its name and its path, and a DNS
# server that resolves every name to ADDRESS.
set -e
name=acme-v02.api.letsencrypt.org
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$name" \
    -addext "subjectAltName=DNS:$name,DNS:localhost,IP:127.0.0.1" -keyout key.pem -out own.pem \
    2>/dev/null
cat >pebble.json <<EOF
{"pebble": {"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
    "certificate": "/root/own.pem", "privateKey": "/root/key.pem", "httpPort": 80, "tlsPort": 443,
    "ocspResponderURL": ""}}
EOF
systemd-run --quiet --unit=dns /root/pebble-challtestsrv -dns01 127.0.0.1:8053 \
    -defaultIPv4 "$1" -defaultIPv6 '' -http01 '' -https01 '' -tlsalpn01 '' -management 127.0.0.1:8055
systemd-run --quiet --unit=pebble --setenv=PEBBLE_VA_NOSLEEP=1 /root/pebble \
    -dnsserver 127.0.0.1:8053 -config /root/pebble.json
apt-get install -qq -y nginx >/dev/null 2>&1
cat >/etc/nginx/conf.d/acme.conf <<EOF
server {
    listen 443 ssl;
    ssl_certificate /root/own.pem;
    ssl_certificate_key /root/key.pem;
    proxy_set_header Host \$host;
    location = /directory { proxy_pass https://127.0.0.1:14000/dir; }
    location / { proxy_pass https://127.0.0.1:14000; }
}
EOF
systemctl reload nginx
for _ in $(seq 300); do
    curl -sf --cacert own.pem https://127.0.0.1:15000/roots/0 >root.pem && break
    sleep 0.1
done
curl -sf --cacert own.pem --resolve "$name:443:127.0.0.1" "https://$name/directory" >/dev/null
