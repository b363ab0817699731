//! Certificate compression (RFC 8879). A server compresses with Brotli or zlib for clients that
//! offer one. Our client can offer Brotli, as browsers do.
//!
//! A certificate chain is compressed once, at the highest level, when the first client needs it, and
//! kept. The server sends the same message to all clients, so nothing secret is compressed.

use std::io::{self, Cursor, Write};
use std::sync::Arc;

use boring::ssl::{CertificateCompressionAlgorithm, CertificateCompressor, SslContextBuilder};
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use quick_cache::sync::Cache;

use crate::TlsError;

/// Makes a context compress certificates.
///
/// # Errors
/// [`TlsError::Setup`] if there is no memory.
pub(crate) fn install(context: &mut SslContextBuilder) -> Result<(), TlsError> {
    let refused = TlsError::setup("certificate compression");
    // In order of preference.
    context
        .add_certificate_compression_algorithm(Brotli(CompressedMessages::new()))
        .and_then(|()| {
            context.add_certificate_compression_algorithm(Zlib(CompressedMessages::new()))
        })
        .map_err(refused)
}

/// A cache of compressed messages by content. Each certificate has a message, and each new OCSP
/// response for it leads to another one.
struct CompressedMessages(Cache<Box<[u8]>, Arc<[u8]>>);

/// Each message takes a few kilobytes.
const MAX_MESSAGES: usize = 1000;

impl CompressedMessages {
    fn new() -> Self {
        Self(Cache::new(MAX_MESSAGES))
    }

    fn write_compressed(
        &self,
        message: &[u8],
        output: &mut impl Write,
        compress: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        if let Some(cached) = self.0.get(message) {
            return output.write_all(&cached);
        }
        let compressed: Arc<[u8]> = compress()?.into();
        self.0.insert(message.into(), compressed.clone());
        output.write_all(&compressed)
    }
}

struct Brotli(CompressedMessages);

impl CertificateCompressor for Brotli {
    const ALGORITHM: CertificateCompressionAlgorithm = CertificateCompressionAlgorithm::BROTLI;
    const CAN_COMPRESS: bool = true;
    const CAN_DECOMPRESS: bool = false;

    fn compress<W: Write>(&self, input: &[u8], output: &mut W) -> io::Result<()> {
        self.0.write_compressed(input, output, || {
            let mut compressed = Vec::new();
            let settings =
                BrotliEncoderParams { size_hint: input.len(), ..BrotliEncoderParams::default() };
            brotli::BrotliCompress(&mut Cursor::new(input), &mut compressed, &settings)?;
            Ok(compressed)
        })
    }
}

/// The client's side of [`Brotli`].
struct BrotliDecompressor;

/// Makes a client offer Brotli.
///
/// # Errors
/// [`TlsError::Setup`] if there is no memory.
pub(crate) fn offer(context: &mut SslContextBuilder) -> Result<(), TlsError> {
    context
        .add_certificate_compression_algorithm(BrotliDecompressor)
        .map_err(TlsError::setup("certificate compression"))
}

impl CertificateCompressor for BrotliDecompressor {
    const ALGORITHM: CertificateCompressionAlgorithm = CertificateCompressionAlgorithm::BROTLI;
    const CAN_COMPRESS: bool = false;
    const CAN_DECOMPRESS: bool = true;

    /// `output` holds the uncompressed length that the message states, which BoringSSL limits to
    /// 100 KiB. Longer and shorter output both fail.
    fn decompress<W: Write>(&self, input: &[u8], output: &mut W) -> io::Result<()> {
        brotli::BrotliDecompress(&mut Cursor::new(input), output)
    }
}

struct Zlib(CompressedMessages);

impl CertificateCompressor for Zlib {
    const ALGORITHM: CertificateCompressionAlgorithm = CertificateCompressionAlgorithm::ZLIB;
    const CAN_COMPRESS: bool = true;
    const CAN_DECOMPRESS: bool = false;

    fn compress<W: Write>(&self, input: &[u8], output: &mut W) -> io::Result<()> {
        self.0.write_compressed(input, output, || {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(input)?;
            encoder.finish()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decompresses what `plain` compresses to, into a buffer of `announced` bytes.
    fn decompress(plain: &[u8], announced: usize) -> Option<Vec<u8>> {
        let mut compressed = Vec::new();
        Brotli(CompressedMessages::new()).compress(plain, &mut compressed).unwrap();
        let mut buffer = vec![0; announced];
        let mut output = Cursor::new(&mut buffer[..]);
        BrotliDecompressor.decompress(&compressed, &mut output).ok()?;
        assert_eq!(output.position(), plain.len() as u64);
        Some(buffer)
    }

    #[test]
    fn a_certificate_that_decompresses_to_more_than_announced_is_refused() {
        let plain = vec![7; 1 << 20];
        assert_eq!(decompress(&plain, 1 << 20).as_deref(), Some(&plain[..]));
        assert_eq!(decompress(&plain, 5_000), None);
    }

    #[test]
    fn bytes_that_are_not_brotli_are_refused() {
        for hostile in [&b""[..], b"\xff\xff\xff\xff", b"\x00", &[0x5a; 300]] {
            let mut buffer = [0; 64];
            let output = &mut Cursor::new(&mut buffer[..]);
            let refused = BrotliDecompressor.decompress(hostile, output).is_err();
            assert!(refused || output.position() < 64, "{hostile:?}");
        }
    }
}
