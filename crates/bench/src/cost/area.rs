use std::fmt;

use serde::Serialize;

/// The part of the server that a function belongs to. A profile by area shows what to optimize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The kernel, and the entry into it.
    Kernel,
    /// X25519 and ML-KEM.
    KeyExchange,
    /// ECDSA, RSA and Ed25519.
    Signature,
    /// SHA-2, HMAC and HKDF.
    Hashing,
    /// AEADs, and the ciphers below them.
    Encryption,
    /// The handshake and the record layer.
    Tls,
    /// QUIC without its cryptography.
    Quic,
    /// HTTP/1.1, HTTP/2, HTTP/3 and routing.
    Http,
    /// Files and upstreams.
    Handler,
    /// The gate, the strike register, and ticket keys.
    Gate,
    /// Metrics and status.
    Metrics,
    /// Access log, messages and traces.
    Log,
    /// The allocator.
    Allocation,
    /// `memcpy`, `memmove`, `memset` and `memcmp`.
    Copying,
    /// Tasks, timers and readiness.
    Runtime,
    /// None of these.
    Other,
}

impl Area {
    /// All areas, in the order of tables.
    pub const ALL: [Self; 16] = [
        Self::Kernel,
        Self::KeyExchange,
        Self::Signature,
        Self::Hashing,
        Self::Encryption,
        Self::Tls,
        Self::Quic,
        Self::Http,
        Self::Handler,
        Self::Gate,
        Self::Metrics,
        Self::Log,
        Self::Allocation,
        Self::Copying,
        Self::Runtime,
        Self::Other,
    ];

    /// The area of a function by its demangled name. The first rule that matches decides.
    pub fn of(symbol: &str) -> Self {
        let trimmed = symbol.trim_start_matches(['_', '<', '&']);
        for (area, rule, patterns) in RULES {
            let matches = |pattern: &&str| match rule {
                Rule::Contains => symbol.contains(*pattern),
                Rule::StartsWith => trimmed.starts_with(*pattern),
            };
            if patterns.iter().any(matches) {
                return *area;
            }
        }
        Self::Other
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KeyExchange => "key exchange",
            Self::Signature => "signature",
            Self::Hashing => "hashing",
            Self::Encryption => "encryption",
            Self::Tls => "TLS state",
            Self::Quic => "QUIC state",
            Self::Http => "HTTP",
            Self::Handler => "files, upstreams",
            Self::Gate => "gate, tickets",
            Self::Metrics => "metrics",
            Self::Log => "log",
            Self::Allocation => "allocation",
            Self::Copying => "copying",
            Self::Runtime => "runtime",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Copy)]
enum Rule {
    Contains,
    /// Leading `_`, `<` and `&` of the symbol are ignored.
    StartsWith,
}

/// Patterns of our own crates precede those of libraries, since the symbol of a generic function
/// contains the names of all its type parameters.
const RULES: &[(Area, Rule, &[&str])] = &[
    (
        Area::Copying,
        Rule::StartsWith,
        &["memcpy", "memmove", "memset", "memcmp", "bcmp", "OPENSSL_memcpy"],
    ),
    (
        Area::Allocation,
        Rule::StartsWith,
        &[
            "malloc",
            "calloc",
            "realloc",
            "free",
            "cfree",
            "int_malloc",
            "int_free",
            "int_realloc",
            "int_memalign",
            "posix_memalign",
            "aligned_alloc",
            "unlink_chunk",
            "systrim",
            "sysmalloc",
            "tcache",
            "rust_alloc",
            "rust_dealloc",
            "rust_realloc",
            "OPENSSL_malloc",
            "OPENSSL_free",
            "OPENSSL_realloc",
            "OPENSSL_zalloc",
            "libc_malloc",
            "libc_calloc",
            "libc_free",
            "libc_realloc",
            "rdl_",
            "rg_",
            "alloc_perturb",
            "operator new",
            "operator delete",
        ],
    ),
    (
        Area::KeyExchange,
        Rule::Contains,
        &[
            "x25519",
            "X25519",
            "fe_mul",
            "fe_sq",
            "fe_loose",
            "fe_tobytes",
            "fe_frombytes",
            "fe_invert",
            "fe_add",
            "fe_sub",
            "fe_carry",
            "fe_cmov",
            "fe_cswap",
            "fiat_25519",
            "curve25519",
            "ge_p1p1",
            "ge_p2",
            "ge_p3",
            "ge_madd",
            "ge_precomp",
            "table_select",
            "mlkem",
            "MLKEM",
            "keccak",
            "KeyShare",
            "ssl_key_share",
        ],
    ),
    (
        Area::Signature,
        Rule::Contains,
        &[
            "ecdsa",
            "ECDSA",
            "p256",
            "P256",
            "ecp_nistz256",
            "ec_GFp",
            "ec_point",
            "ec_scalar",
            "ec_felem",
            "bn_mul",
            "bn_sqr",
            "bn_mod",
            "bn_from",
            "BN_",
            "rsa",
            "RSA_",
            "ED25519",
            "ed25519",
            "private_key_operation",
            "beeu_mod_inverse",
        ],
    ),
    (
        Area::Hashing,
        Rule::Contains,
        &[
            "sha256",
            "SHA256",
            "sha512",
            "SHA512",
            "sha1_block",
            "HMAC",
            "hmac",
            "HKDF",
            "hkdf",
            "EVP_Digest",
            "EVP_MD",
            "hkdf_expand_label",
            "SSLTranscript",
            "digest::",
            "sha2::",
        ],
    ),
    (
        Area::Encryption,
        Rule::Contains,
        &[
            "aes_",
            "AES_",
            "aesni",
            "vpaes",
            "gcm_",
            "GCM",
            "ghash",
            "chacha",
            "ChaCha",
            "poly1305",
            "EVP_AEAD",
            "aead_",
            "aead::",
            "EVP_CIPHER",
            "EVP_Encrypt",
            "ctr32",
            "hybrid_array",
            "cipher::",
            "core_arch",
            "universal_hash",
        ],
    ),
    (
        Area::Metrics,
        Rule::Contains,
        &["observe::metrics", "observe::status", "firstflight_telemetry"],
    ),
    (Area::Log, Rule::Contains, &["observe::", "access_log", "tracing", "firstflight::log"]),
    (
        Area::Gate,
        Rule::Contains,
        &[
            "firstflight_replay",
            "firstflight_server::gate",
            "firstflight_tickets",
            "handshake::tickets",
        ],
    ),
    (
        Area::Handler,
        Rule::Contains,
        &[
            "firstflight_server::handler",
            "firstflight_upstream",
            "tower_http",
            "std::fs",
            "std::sys::fs",
            "rustix::fs",
        ],
    ),
    (
        Area::Quic,
        Rule::Contains,
        &["firstflight_quic", "quinn", "handshake::quic", "handshake::initials", "listen::udp"],
    ),
    (Area::Tls, Rule::Contains, &["firstflight_tls", "firstflight_server::handshake"]),
    (
        Area::Http,
        Rule::Contains,
        &[
            "firstflight_server::http",
            "firstflight_server::route",
            "hyper",
            "h2::",
            "h3::",
            "h3_quinn",
            "http::",
            "httparse",
            "http_body",
            "httpdate",
            "firstflight_server",
        ],
    ),
    (
        Area::Tls,
        Rule::Contains,
        &[
            "boring", "bssl::", "SSL_", "ssl_", "tls13_", "tls_", "CBB_", "CBS_", "cbs_", "cbb_",
            "CRYPTO_", "X509", "ASN1", "EVP_", "BIO_", "OPENSSL_", "RAND_", "ERR_", "sk_", "lh_",
            "ext_",
        ],
    ),
    (
        Area::Runtime,
        Rule::Contains,
        &["tokio", "mio::", "futures", "parking_lot", "pthread", "std::thread"],
    ),
    (
        Area::Kernel,
        Rule::StartsWith,
        &[
            "syscall",
            "epoll_wait",
            "epoll_ctl",
            "accept4",
            "recv",
            "send",
            "read",
            "write",
            "close",
            "shutdown",
            "getsockname",
            "setsockopt",
            "openat",
            "clock_gettime",
            "vdso",
            "entry_SYSCALL",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_belong_to_the_area_that_they_work_for() {
        for (symbol, area) in [
            ("__memset_avx2_unaligned_erms", Area::Copying),
            ("_int_free", Area::Allocation),
            ("fe_mul_impl(unsigned long*, unsigned long const*)", Area::KeyExchange),
            ("ecp_nistz256_point_add", Area::Signature),
            ("sha256_block_data_order_avx", Area::Hashing),
            ("aes_gcm_enc_update_vaes_avx2", Area::Encryption),
            ("fiat_curve25519_adx_mul", Area::KeyExchange),
            ("CBB_flush", Area::Tls),
            ("bssl::ssl_server_handshake(bssl::SSL_HANDSHAKE*)", Area::Tls),
            ("quinn_proto::connection::Connection::handle_packet", Area::Quic),
            ("<hyper::proto::h1::conn::Conn<I,B,T>>::poll_read_head", Area::Http),
            ("firstflight_server::handler::files::open", Area::Handler),
            ("firstflight_replay::register::Register::claim", Area::Gate),
            ("firstflight_server::observe::metrics::ConnectionMetrics::accepted_at", Area::Metrics),
            ("firstflight_server::observe::access_log::write", Area::Log),
            ("tokio::runtime::scheduler::multi_thread::worker::run", Area::Runtime),
            ("epoll_wait", Area::Kernel),
            ("main", Area::Other),
        ] {
            assert_eq!(Area::of(symbol), area, "{symbol}");
        }
    }

    #[test]
    fn a_firstflight_future_that_tokio_polls_has_the_area_of_its_crate() {
        let symbol = "tokio::runtime::task::Core<firstflight_server::http::serve>::poll";
        assert_eq!(Area::of(symbol), Area::Http);
    }
}
