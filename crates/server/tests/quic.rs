//! HTTP/3: what is served over QUIC as over TCP.

mod rig;

use firstflight_quic::Remembered;
use http::{Method, StatusCode};
use rig::Rig;
use rig::quic::{Quic, reply, request};

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_as_over_tcp() {
    let rig = Rig::files(|_| {}).await;
    let mut client = Quic::connect(rig.address, Remembered::default()).await;
    let page = client.get("/").await;
    assert_eq!((page.status, &page.body[..]), (StatusCode::OK, &b"hello\n"[..]));
    assert_eq!(page.headers["content-length"], "6");
    assert!(page.headers.contains_key("date") && !page.headers.contains_key("alt-svc"));
    let head = client.ask(Method::HEAD, "/index.html").await.unwrap();
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["content-length"], "6");
    let none = client.get("/none").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    let mut range = request(Method::GET, "/big");
    range.headers_mut().insert("range", "bytes=10-19".parse().unwrap());
    let range = reply(client.begin(range, true).await).await.unwrap();
    assert_eq!((range.status, range.body.len()), (StatusCode::PARTIAL_CONTENT, 10));
    let big = client.get("/big").await;
    assert_eq!(big.body.len(), 1 << 20);
    client.close().await;
    let log = rig.stop().await;
    assert_eq!(log.len(), 5, "{log:?}");
    for line in &log {
        assert_eq!(
            (&line["protocol"], &line["complete"]),
            (&"HTTP/3".into(), &true.into()),
            "{line}"
        );
        assert_eq!((&line["early"], &line["tls_version"]), (&false.into(), &"TLSv1.3".into()));
    }
}
