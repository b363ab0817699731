# What a node may do in OpenBao: read the key-encryption keys, nothing else.
path "secret/data/firstflight" {
  capabilities = ["read"]
}
