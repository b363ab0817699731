# OpenBao's agent (or Vault's) on each node: writes the key-encryption keys, and writes them again
# when they change. The secret's field `keys` holds them, a line each, the one to seal under first.
# The Debian package's service keeps /run/firstflight while it is stopped or restarts.
#
#   bao agent -config bao-agent.hcl

vault {
  address = "https://bao.internal:8200"
}

auto_auth {
  method "approle" {
    config = {
      role_id_file_path                   = "/etc/firstflight/role-id"
      secret_id_file_path                 = "/etc/firstflight/secret-id"
      remove_secret_id_file_after_reading = false
    }
  }
}

template_config {
  static_secret_render_interval = "1m"
}

template {
  contents             = "{{ with secret \"secret/data/firstflight\" }}{{ .Data.data.keys }}\n{{ end }}"
  destination          = "/run/firstflight/kek"
  perms                = "0600"
  # user               = "firstflight"    # if the agent runs as root
  error_on_missing_key = true
}
