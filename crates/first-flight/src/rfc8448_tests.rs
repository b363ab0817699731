//! The traces of RFC 8448, sections 3 to 5, byte by byte: what we send, from the RFC's random values
//! and private keys, and what we read.

use std::time::Duration;

use crate::Entropy;
use crate::flight::FirstFlight;
use crate::hello::{Hello, PskOffer};
use crate::parts::Offer;
use crate::schedule::Schedule;
use crate::{Event, ProtocolError, Suite, Ticket};

fn hex(text: &str) -> Vec<u8> {
    hex::decode(text.split_whitespace().collect::<String>()).unwrap()
}

fn array(text: &str) -> [u8; 32] {
    hex(text).try_into().unwrap()
}

fn offer(private_key: &str, ticket: Option<Ticket>) -> Offer {
    let private_key = array(private_key);
    let mut base = [0; 32];
    base[0] = 9;
    Offer {
        hello: Hello::new("server", &[]),
        entropy: Entropy { random: [0; 32], private_key, connection_ids: [[0; 8]; 2] },
        public: x25519_dalek::x25519(private_key, base),
        ticket,
        obfuscated_age: 0,
    }
}

fn ticket() -> Ticket {
    Ticket {
        suite: Suite::Aes128GcmSha256,
        identity: hex(IDENTITY),
        lifetime: Duration::from_secs(30),
        max_early_data: Some(1024),
        alpn: None,
        received: Duration::from_secs(9),
        age_add: 0xfad6_aac5,
        psk: hex(PSK),
    }
}

/// Bytes 0, 1, 2 and so on: the application data of both sides.
fn data() -> Vec<u8> {
    (0..50).collect()
}

fn full() -> FirstFlight {
    FirstFlight::assemble(offer(FULL_KEY, None), hex(FULL_HELLO)[5..].to_vec(), None, None)
}

#[test]
fn rfc8448_3_full_handshake() {
    assert_eq!(offer(FULL_KEY, None).public, array(FULL_PUBLIC));
    let mut connection = full().connection();
    assert_eq!(connection.take_output().concat(), hex(FULL_HELLO));
    let now = Duration::from_secs(9);
    // In pieces: the length of reads makes no difference.
    for byte in [hex(FULL_SERVER_HELLO), hex(FULL_SERVER_FLIGHT)].concat() {
        assert!(!connection.is_ready());
        connection.receive(&[byte], now).unwrap();
    }
    let suite = Suite::Aes128GcmSha256;
    assert_eq!(connection.next_event(), Some(Event::ServerHello { suite, resumed: false }));
    let extensions = Event::EncryptedExtensions { early_data: false, alpn: None };
    assert_eq!(connection.next_event(), Some(extensions));
    let certificate = connection.next_event();
    assert!(matches!(certificate, Some(Event::Certificate(content)) if content.len() == 441));
    assert_eq!(connection.next_event(), Some(Event::Finished));
    assert!(!connection.send(b"too early"));
    assert!(connection.finish());
    assert_eq!(connection.take_output().concat(), hex(FULL_FINISHED));
    connection.receive(&hex(FULL_TICKET), now).unwrap();
    assert_eq!(connection.next_event(), Some(Event::Ticket(ticket())));
    assert!(connection.send(&data()));
    assert_eq!(connection.take_output().concat(), hex(FULL_CLIENT_DATA));
    connection.receive(&hex(FULL_SERVER_DATA), now).unwrap();
    let event =
        Event::ApplicationData { stream: 0, end: false, data: data(), before_finished: false };
    assert_eq!(connection.next_event(), Some(event));
    connection.close();
    assert_eq!(connection.take_output().concat(), hex(FULL_CLOSE));
    connection.receive(&hex(FULL_SERVER_CLOSE), now).unwrap();
    assert_eq!(connection.next_event(), Some(Event::Alert(crate::Alert::CLOSE_NOTIFY)));
}

#[test]
fn rfc8448_4_resumed_with_early_data() {
    let hello = hex(RESUMED_HELLO)[5..].to_vec();
    let truncated = &hello[..hello.len() - PskOffer::binders_len(32)];
    let schedule = Schedule::early(Suite::Aes128GcmSha256, Some(&hex(PSK)));
    assert_eq!(schedule.binder(b"", truncated), hello[hello.len() - 32..]);

    let offer = offer(RESUMED_KEY, Some(ticket()));
    let flight = FirstFlight::assemble(offer, hello, Some(b"ABCDEF".to_vec()), None);
    assert_eq!(flight.bytes(), [hex(RESUMED_HELLO), hex(RESUMED_EARLY)].concat());
    let mut connection = flight.connection();
    connection.take_output().concat();
    let now = Duration::ZERO;
    connection.receive(&hex(RESUMED_SERVER_HELLO), now).unwrap();
    connection.receive(&hex(RESUMED_SERVER_FLIGHT), now).unwrap();
    let suite = Suite::Aes128GcmSha256;
    assert_eq!(connection.next_event(), Some(Event::ServerHello { suite, resumed: true }));
    let extensions = Event::EncryptedExtensions { early_data: true, alpn: None };
    assert_eq!(connection.next_event(), Some(extensions));
    assert_eq!(connection.next_event(), Some(Event::Finished));
    assert!(connection.finish());
    assert_eq!(connection.take_output().concat(), hex(RESUMED_FINISHED));
    assert!(connection.send(&data()));
    assert_eq!(connection.take_output().concat(), hex(RESUMED_CLIENT_DATA));
    connection.receive(&hex(RESUMED_SERVER_DATA), now).unwrap();
    let event =
        Event::ApplicationData { stream: 0, end: false, data: data(), before_finished: false };
    assert_eq!(connection.next_event(), Some(event));
}

#[test]
fn rfc8448_5_a_retry_with_another_group_is_an_error() {
    let mut connection = full().connection();
    let outcome = connection.receive(&hex(RETRY), Duration::ZERO);
    assert_eq!(outcome, Err(ProtocolError::Group(0x17)));
}

#[test]
fn a_changed_byte_of_the_server_is_an_error() {
    let server = [hex(FULL_SERVER_HELLO), hex(FULL_SERVER_FLIGHT)].concat();
    // Versions of records are not checked, and a longer record waits for its end.
    for at in (5..server.len()).step_by(7) {
        let mut server = server.clone();
        server[at] ^= 1;
        let mut connection = full().connection();
        let outcome = connection.receive(&server, Duration::ZERO);
        assert!(outcome.is_err() || !connection.is_ready(), "byte {at}");
    }
}

const FULL_KEY: &str = "49af42ba7f7994852d713ef2784bcbcaa7911de26adc5642cb634540e7ea5005";
const FULL_PUBLIC: &str = "99381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c";
const RESUMED_KEY: &str = "bff91188283846dd6a2134ef7180ca2b0b14fb10dce707b5098c0dddc813b2df";
const PSK: &str = "4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3";
const FULL_HELLO: &str = "
    16030100c4010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7000006
    130113031302010000910000000b0009000006736572766572ff01000100000a00140012001d0017001800190100
    010101020103010400230000003300260024001d002099381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d
    5413691e529aaf2c002b0003020304000d0020001e04030503060302030804080508060401050106010201040205
    0206020202002d00020101001c00024001
";
const FULL_SERVER_HELLO: &str = "
    160303005a020000560303a6af06a4121860dc5e6e60249cd34c95930c8ac5cb1434dac155772ed3e26928001301
    00002e00330024001d0020c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f002b00
    020304
";
const FULL_SERVER_FLIGHT: &str = "
    17030302a2d1ff334a56f5bff6594a07cc87b580233f500f45e489e7f33af35edf7869fcf40aa40aa2b8ea73f848
    a7ca07612ef9f945cb960b4068905123ea78b111b429ba9191cd05d2a389280f526134aadc7fc78c4b729df828b5
    ecf7b13bd9aefb0e57f271585b8ea9bb355c7c79020716cfb9b1183ef3ab20e37d57a6b9d7477609aee6e122a4cf
    51427325250c7d0e509289444c9b3a648f1d71035d2ed65b0e3cdd0cbae8bf2d0b227812cbb360987255cc744110
    c453baa4fcd610928d809810e4b7ed1a8fd991f06aa6248204797e36a6a73b70a2559c09ead686945ba246ab66e5
    edd8044b4c6de3fcf2a89441ac66272fd8fb330ef8190579b3684596c960bd596eea520a56a8d650f563aad27409
    960dca63d3e688611ea5e22f4415cf9538d51a200c27034272968a264ed6540c84838d89f72c24461aad6d26f59e
    caba9acbbb317b66d902f4f292a36ac1b639c637ce343117b659622245317b49eeda0c6258f100d7d961ffb13864
    7e92ea330faeea6dfa31c7a84dc3bd7e1b7a6c7178af36879018e3f252107f243d243dc7339d5684c8b0378bf302
    44da8c87c843f5e56eb4c5e8280a2b48052cf93b16499a66db7cca71e4599426f7d461e66f99882bd89fc50800be
    cca62d6c74116dbd2972fda1fa80f85df881edbe5a37668936b335583b599186dc5c6918a396fa48a181d6b6fa4f
    9d62d513afbb992f2b992f67f8afe67f76913fa388cb5630c8ca01e0c65d11c66a1e2ac4c85977b7c7a6999bbf10
    dc35ae69f5515614636c0b9b68c19ed2e31c0b3b66763038ebba42f3b38edc0399f3a9f23faa63978c317fc9fa66
    a73f60f0504de93b5b845e275592c12335ee340bbc4fddd502784016e4b3be7ef04dda49f4b440a30cb5d2af9398
    28fd4ae3794e44f94df5a631ede42c1719bfdabf0253fe5175be898e750edc53370d2b
";
const FULL_FINISHED: &str = "
    170303003575ec4dc238cce60b298044a71e219c56cc77b0517fe9b93c7a4bfc44d87f38f80338ac98fc46deb384
    bd1caeacab6867d726c40546
";
const FULL_TICKET: &str = "
    17030300de3a6b8f90414a97d6959c3487680de5134a2b240e6cffac116e95d41d6af8f6b580dcf3d11d63c758db
    289a015940252f55713e061dc13e078891a38efbcf5753ad8ef170ad3c7353d16d9da773b9ca7f2b9fa1b6c0d4a3
    d03f75e09c30ba1e62972ac46f75f7b981be63439b2999ce13064615139891d5e4c5b406f16e3fc181a77ca47584
    0025db2f0a77f81b5ab05b94c01346755f69232c86519d86cbeeac87aac347d143f9605d64f650db4d023e70e952
    ca49fe5137121c74bc2697687e248746d6df353005f3bce18696129c8153556b3b6c6779b37bf15985684f
";
const IDENTITY: &str = "
    2c035d829359ee5ff7af4ec900000000262a6494dc486d2c8a34cb33fa90bf1b0070ad3c498883c9367c09a2be78
    5abc55cd226097a3a982117283f82a03a143efd3ff5dd36d64e861be7fd61d2827db279cce145077d454a3664d4e
    6da4d29ee03725a6a4dafcd0fc67d2aea70529513e3da2677fa5906c5b3f7d8f92f228bda40dda721470f9fbf297
    b5aea617646fac5c03272e970727c621a79141ef5f7de6505e5bfbc388e93343694093934ae4d357
";
const FULL_CLIENT_DATA: &str = "
    1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a2044
    1e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4
";
const FULL_SERVER_DATA: &str = "
    17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a
    59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d
";
const FULL_CLOSE: &str = "
    1703030013c9872760655666b74d7ff1153efd6db6d0b0e3
";
const FULL_SERVER_CLOSE: &str = "
    1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9
";
const RESUMED_HELLO: &str = "
    1603010200010001fc03031bc3ceb6bbe39cff938355b5a50adb6db21b7a6af649d7b4bc419d7876487d95000006
    130113031302010001cd0000000b0009000006736572766572ff01000100000a00140012001d0017001800190100
    0101010201030104003300260024001d0020e4ffb68ac05f8d96c99da26698346c6be16482badddafe051a66b4f1
    8d668f0b002a0000002b0003020304000d0020001e04030503060302030804080508060401050106010201040205
    0206020202002d00020101001c000240010015005700000000000000000000000000000000000000000000000000
    00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
    00000000000000000000000000000000002900dd00b800b22c035d829359ee5ff7af4ec900000000262a6494dc48
    6d2c8a34cb33fa90bf1b0070ad3c498883c9367c09a2be785abc55cd226097a3a982117283f82a03a143efd3ff5d
    d36d64e861be7fd61d2827db279cce145077d454a3664d4e6da4d29ee03725a6a4dafcd0fc67d2aea70529513e3d
    a2677fa5906c5b3f7d8f92f228bda40dda721470f9fbf297b5aea617646fac5c03272e970727c621a79141ef5f7d
    e6505e5bfbc388e93343694093934ae4d357fad6aacb0021203add4fb2d8fdf822a0ca3cf7678ef5e88dae990141
    c5924d57bb6fa31b9e5f9d
";
const RESUMED_EARLY: &str = "
    1703030017ab1df420e75c457a7cc5d2844f76d5aee4b4edbf049be0
";
const RESUMED_SERVER_HELLO: &str = "
    16030300600200005c03033ccfd2dec890222763472ae8136777c9d7358777bb66e91ea5122495f559ea2d001301
    00003400290002000000330024001d0020121761ee42c333e1b9e77b60dd57c2053cd94512ab47f115e86eff5094
    2cea31002b00020304
";
const RESUMED_SERVER_FLIGHT: &str = "
    1703030061dc48237b4b879f50d0d4d262ea8b4716eb40ddc1eb957e11126e8a7149c2d012d37a7115957e64ce30
    008b9e0323f2c05a9c1c77b4f37849a695ab255060a33fee770ca95cb8486bfd0843b87024865ca35cc41c4e515c
    64dcb1369f98635bc7a5
";
const RESUMED_FINISHED: &str = "
    1703030015aca6fc944841298df99593725f9bf9754429b12f09170303003500f8b467d14cf22a4b3f0b6ae0d8e6
    cc8d08e0db3515ef5c2bdf1922eafbb70009964716d834fb70c3d2a56c5b1f5f6bdba6c333cf
";
const RESUMED_CLIENT_DATA: &str = "
    1703030043b1cebce242aa201be9ae5e1cb2a9aa4b33d4e866af1edb068919237741aa031d7a74d491c99b9d4e23
    2b74206bc6fbaa04fe78be44a9b4f54320a17eb76992afac3103
";
const RESUMED_SERVER_DATA: &str = "
    1703030043275e9f20acff57bc000657d3867df039cccf79047884cf75771746f740b5a83f462a0954c3581393a2
    03a25a7dd14141ef1a37900cdb62ff62dee1ba39ab2590cbf194
";
const RETRY: &str = "
    16030300b0020000ac0303cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c001301
    000084003300020017002c0074007271dcd04bb88bc3189119398a00000000eefafc76c146b823b096f8aacad365
    dd0030953f4edf625636e5f21bb2e23fcc654b1b5b40318d10d137abcbb87574e36e8a1f025f7dfa5d6e50781b5e
    da4aa15b0c8be778257d16aa3030e9e7841dd9e4c0342267e8ca0caf571fb2b7cff0f934b0002b00020304
";
