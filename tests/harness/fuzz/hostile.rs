//! Bad inputs made of good ones: what has broken decoders elsewhere, tried at every place.

/// Every damage of `seed`: cut anywhere, every integer that could be a field at its extremes, a wrong byte anywhere, numbers that are none,
/// bytes that are no UTF-8, more bytes behind it.
pub fn damaged(seed: &[u8]) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = (0..seed.len()).map(|end| seed[..end].to_vec()).collect();
    for at in 0..seed.len() {
        for patch in PATCHES.iter().filter(|patch| at + patch.len() <= seed.len()) {
            found.push([&seed[..at], patch, &seed[at + patch.len()..]].concat());
        }
        for flipped in [seed[at].wrapping_add(1), seed[at].wrapping_sub(1), seed[at] ^ 0x80] {
            found.push([&seed[..at], &[flipped], &seed[at + 1..]].concat());
        }
    }
    found.push([seed, &[0]].concat());
    found.push([seed, seed].concat());
    found
}

/// What strangers send to any port: probes for HTTP, TLS, QUIC and others, and nothing at all.
pub fn probes() -> Vec<Vec<u8>> {
    let mut quic = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
    quic.resize(1200, 0);
    let other_version: Vec<u8> =
        [0xc0, 0xba, 0xba, 0xba, 0xba].into_iter().chain(std::iter::repeat_n(7, 1195)).collect();
    vec![
        Vec::new(),
        vec![0; 64],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\nHost: gradlane\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x00\xc0\x01\x00\x00\xbc\x03\x03".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        b"\x00\x00\x00\x54\xffSMBr\x00\x00\x00\x00".to_vec(),
        quic,
        other_version,
    ]
}

/// Written over a seed at every place: 0, 1, the greatest but one, the greatest, 2^31 and 2^63 in all widths, floats that are no numbers,
/// a length of 2^40, and bytes that are no UTF-8.
const PATCHES: &[&[u8]] = &[
    &[0],
    &[1],
    &[0xfe],
    &[0xff],
    &[0, 0],
    &[1, 0],
    &[0xfe, 0xff],
    &[0xff, 0xff],
    &[0, 0x80],
    &[0, 0, 0, 0],
    &[1, 0, 0, 0],
    &[0xfe, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff],
    &[0, 0, 0, 0x80],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0, 0, 0, 0, 0],
    &[1, 0, 0, 0, 0, 0, 0, 0],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0, 0, 0, 0x80, 0, 0, 0, 0],
    &[0, 0, 0, 0, 0, 0, 0, 0x80],
    &[0, 0, 0, 0, 0, 1, 0, 0],
    &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
    &[1, 0, 0, 0, 0, 0, 0xf0, 0xff],
    &[0, 0, 0, 0, 0, 0, 0xf0, 0x7f],
    &[0xc0, 0x80],
    &[0xed, 0xa0, 0x80],
];
