//! What a server's first message shows to everybody on the path.

/// Whether a server resumes a session: whether its ServerHello, a handshake message with its header,
/// selects a pre-shared key (RFC 8446 section 4.2.11). A full handshake has a certificate instead.
///
/// # Panics
/// If the message is no ServerHello.
pub fn resumes(server_hello: &[u8]) -> bool {
    const SERVER_HELLO: u8 = 2;
    const PRE_SHARED_KEY: [u8; 2] = [0, 41];
    assert_eq!(server_hello.first(), Some(&SERVER_HELLO), "a ServerHello");
    // Header, version, random, session id, cipher suite, compression method.
    let session_id = usize::from(server_hello[4 + 2 + 32]);
    let mut rest = &server_hello[4 + 2 + 32 + 1 + session_id + 2 + 1..];
    let number = |bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let end = 2 + number(rest);
    rest = &rest[2..end];
    while !rest.is_empty() {
        if rest[..2] == PRE_SHARED_KEY {
            return true;
        }
        rest = &rest[4 + number(&rest[2..])..];
    }
    false
}

/// Like [`resumes`], for the first bytes that a server sends over TCP: its ServerHello in a record.
///
/// # Panics
/// If they are something else.
pub fn resumes_over_tcp(response: &[u8]) -> bool {
    const HANDSHAKE: u8 = 22;
    assert_eq!(response.first(), Some(&HANDSHAKE), "a handshake message");
    resumes(&response[5..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ServerHello with these extensions.
    fn server_hello(extensions: &[u8]) -> Vec<u8> {
        let mut message = vec![2, 0, 0, 0, 3, 3];
        message.extend([7; 32]);
        message.extend([2, 9, 9, 0x13, 1, 0]);
        message.extend((extensions.len() as u16).to_be_bytes());
        message.extend(extensions);
        message
    }

    #[test]
    fn rfc8446_4_2_11_a_selected_pre_shared_key_is_found() {
        let supported_versions = [0, 43, 0, 2, 3, 4];
        let pre_shared_key = [0, 41, 0, 2, 0, 0];
        assert!(!resumes(&server_hello(&supported_versions)));
        let resumed = server_hello(&[supported_versions, pre_shared_key].concat());
        assert!(resumes(&resumed));
        // Bytes after the message are ignored.
        let record = [&[22, 3, 3, 0, 90][..], &resumed, &[20, 3, 3, 0, 1, 1]].concat();
        assert!(resumes_over_tcp(&record));
    }
}
