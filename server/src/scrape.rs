//! Reads what an exporter shows, for tests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::runtime::exporter::Exporter;

/// An exporter at any free port of this host.
pub(crate) fn exporter() -> Arc<Exporter> {
    let bind = Some("127.0.0.1:0".to_owned());
    Exporter::by_settings(&Config { metrics_bind: bind, ..Config::default() }).unwrap().expect("a port is free")
}

/// The status and the body of a page.
pub(crate) fn get(exporter: &Exporter, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(exporter.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    match head.split(' ').nth(1).expect("a status").parse().expect("a number") {
        // This thread was too slow.
        408 => get(exporter, path),
        status => (status, body.to_owned()),
    }
}
