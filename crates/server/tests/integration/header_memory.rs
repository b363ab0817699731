//! The memory of HTTP/3 clients whose request heads are incomplete.

use std::time::Duration;

use firstflight_quic::Remembered;
use h3::error::Code;
use http::Method;
use tokio::time::timeout;

use crate::support::quic::{Quic, config, endpoint};
use crate::support::{RunningServer, TEST_TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_heads_hold_no_more_memory_than_the_limit() {
    let server = RunningServer::files(|config| {
        config.limits.memory = 1 << 20;
        config.limits.header_timeout = Duration::from_secs(30);
    })
    .await;
    let endpoint = endpoint();
    let (config, _) = config("h3", Remembered::default());
    let connecting = endpoint.connect_with(config, server.address, "localhost").unwrap();
    let connection = timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap();
    // 50,000 bytes of a HEADERS frame of 60,000, on each of 60 streams.
    let mut streams = Vec::new();
    for _ in 0..60 {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        let part = [&[1, 0x80, 0, 0xea, 0x60][..], &[0; 50_000]].concat();
        let _ = timeout(TEST_TIMEOUT, send.write_all(&part)).await.unwrap();
        streams.push((send, recv));
    }
    let mut stopped = 0;
    for (send, _) in &streams {
        if let Ok(code) = timeout(Duration::from_millis(50), send.stopped()).await {
            assert_eq!(code.unwrap().map(u64::from), Some(Code::H3_EXCESSIVE_LOAD.value()));
            stopped += 1;
        }
    }
    assert!(stopped >= 39, "{stopped} of 60 are stopped; not more than 20 fit");
    connection.close(0x100_u32.into(), b"");
    let served = async {
        loop {
            let mut client = Quic::connect(server.address, Remembered::default()).await;
            // Until the server has processed the other connection's end, it resets this one's stream.
            let response = client.request(Method::GET, "/").await;
            if response.is_ok_and(|response| response.status.is_success()) {
                break client.close().await;
            }
        }
    };
    timeout(TEST_TIMEOUT, served).await.expect("the memory is free again");
    server.stop().await;
}
