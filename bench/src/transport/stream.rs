//! A simple alternative to a transport: plain TCP, or TCP with TLS 1.3, with the traffic of raw exchanges.
//!
//! Two connections, one for each direction, and two threads on either side, so that both directions are busy at once and no lock is shared.
//! A message is a frame, `kind, slot, bytes`, and its body. TLS is rustls over aws-lc-rs with AES-128-GCM, as in our own data path.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde::{Deserialize, Serialize};

use crate::team::buffers::Set;
use crate::team::orders::{Case, Mode};
use crate::team::rank::{Exchanger, obey_as_helper};

/// An argument of a joining worker: the [`Endpoint`] of the peer as JSON.
pub(super) const ENDPOINT: &str = "endpoint";

/// Where a peer listens, and the certificate that it shows if it speaks TLS.
#[derive(Serialize, Deserialize)]
pub(super) struct Endpoint {
    address: String,
    certificate: Option<Vec<u8>>,
}

/// The worker's side.
pub(crate) struct StreamWorker {
    up: Sender<(Frame, Vec<u8>)>,
    /// Bodies that were written.
    written: Receiver<io::Result<Vec<u8>>>,
    down: Box<dyn Read + Send>,
}

/// The header before a body.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Frame {
    kind: Kind,
    slot: u64,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// Keep the body and send it back.
    Echo,
    /// Keep the body and acknowledge it.
    Keep,
    /// Send what was kept; no body follows.
    Pull,
}

const FRAME_BYTES: usize = 24;

impl Exchanger for StreamWorker {
    fn join(_rank: u32, _ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let endpoint: Endpoint = with
            .get(ENDPOINT)
            .and_then(|text| serde_json::from_str(text).ok())
            .ok_or_else(|| "a worker needs the endpoint of its peer".to_owned())?;
        let failed = |cause: io::Error| format!("connecting to {}: {cause}", endpoint.address);
        let connect = || {
            let stream = TcpStream::connect(&endpoint.address)?;
            tune(&stream)?;
            Ok(stream)
        };
        let (up, down) = (connect().map_err(failed)?, connect().map_err(failed)?);
        let (mut up, down): (Box<dyn Write + Send>, Box<dyn Read + Send>) = match &endpoint.certificate {
            None => (Box::new(up), Box::new(down)),
            Some(certificate) => {
                let config = Arc::new(client_config(certificate)?);
                (Box::new(client(&config, up)?), Box::new(client(&config, down)?))
            }
        };
        let (orders, received) = channel::<(Frame, Vec<u8>)>();
        let (returned, written) = channel();
        std::thread::spawn(move || {
            for (frame, body) in received {
                let outcome = write_message(&mut up, frame, &body).map(|()| body);
                if returned.send(outcome).is_err() {
                    break;
                }
            }
        });
        Ok(Self { up: orders, written, down })
    }

    fn prepare(&mut self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
        let tensors = case.tensors.len();
        match case.mode {
            Mode::PushPull => self.go(Kind::Echo, tensors, set, in_place),
            Mode::PushOnly => self.go(Kind::Keep, tensors, set, in_place),
            Mode::PullOnly => self.go(Kind::Pull, tensors, set, in_place),
            Mode::PushThenPull => {
                self.go(Kind::Keep, tensors, set, in_place)?;
                self.go(Kind::Pull, tensors, set, in_place)
            }
        }
    }

    fn provide(&mut self, case: &Case, set: &mut Set) -> Result<(), String> {
        if case.mode == Mode::PullOnly { self.go(Kind::Keep, case.tensors.len(), set, false) } else { Ok(()) }
    }

    fn settle(&mut self, case: &Case, set: &mut Set) -> Result<(), String> {
        if case.mode == Mode::PushOnly { self.go(Kind::Pull, case.tensors.len(), set, false) } else { Ok(()) }
    }

    fn meet(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn leave(self) -> Result<(), String> {
        Ok(())
    }
}

impl StreamWorker {
    fn go(&mut self, kind: Kind, tensors: usize, set: &mut Set, in_place: bool) -> Result<(), String> {
        let gone = || "the writing thread ended".to_owned();
        let failed = |cause: io::Error| format!("the stream: {cause}");
        for tensor in 0..tensors {
            let slot = (set.number << 32 | tensor) as u64;
            // The writing thread must own the body, because this thread reads meanwhile.
            let body = if kind == Kind::Pull { Vec::new() } else { set.take_contribution(tensor) };
            let frame = Frame { kind, slot, bytes: body.len() as u64 };
            self.up.send((frame, body)).map_err(|_| gone())?;
        }
        for tensor in 0..tensors {
            let body = self.written.recv().map_err(|_| gone())?.map_err(failed)?;
            if kind != Kind::Pull {
                set.give_back(tensor, body);
            }
            let frame = Frame::read(&mut self.down).map_err(failed)?;
            let into = set.sum_mut(tensor, in_place);
            match usize::try_from(frame.bytes) {
                Ok(0) => {}
                Ok(bytes) if bytes == into.len() => self.down.read_exact(into).map_err(failed)?,
                _ => return Err(format!("an answer of {} bytes where {} were due", frame.bytes, into.len())),
            }
        }
        Ok(())
    }
}

/// The hidden role `stream-store`: listens, prints its endpoint, and serves one worker.
///
/// # Errors
/// Why it could not listen.
pub(crate) fn serve(tls: bool) -> Result<(), String> {
    let failed = |cause: io::Error| format!("listening: {cause}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    let identity = tls.then(Identity::create).transpose()?;
    let endpoint = Endpoint { address, certificate: identity.as_ref().map(|identity| identity.certificate.to_vec()) };
    println!("{}", serde_json::to_string(&endpoint).expect("plain values"));
    std::thread::spawn(move || {
        if let Err(cause) = serve_worker(&listener, identity) {
            eprintln!("the stream: {cause}");
        }
    });
    obey_as_helper()
}

fn serve_worker(listener: &TcpListener, identity: Option<Identity>) -> Result<(), String> {
    let failed = |cause: io::Error| cause.to_string();
    let accept = || {
        let (stream, _) = listener.accept()?;
        tune(&stream)?;
        Ok(stream)
    };
    let (up, down) = (accept().map_err(failed)?, accept().map_err(failed)?);
    let (mut up, mut down): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match identity {
        None => (Box::new(up), Box::new(down)),
        Some(identity) => {
            let config = Arc::new(identity.server_config()?);
            (Box::new(server(&config, up)?), Box::new(server(&config, down)?))
        }
    };
    let (sender, arrived) = channel::<(Frame, Vec<u8>)>();
    let (spent, reusable) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        let mut kept: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (frame, body) in arrived {
            if frame.kind != Kind::Pull
                && let Some(before) = kept.insert(frame.slot, body)
            {
                let _ = spent.send(before);
            }
            let nothing = Vec::new();
            let answer = if frame.kind == Kind::Keep { &nothing } else { kept.get(&frame.slot).unwrap_or(&nothing) };
            if write_message(&mut down, Frame { bytes: answer.len() as u64, ..frame }, answer).is_err() {
                break;
            }
        }
    });
    loop {
        let frame = match Frame::read(&mut up) {
            Ok(frame) => frame,
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(cause) => return Err(cause.to_string()),
        };
        let mut body = reusable.try_recv().unwrap_or_default();
        body.resize(usize::try_from(frame.bytes).map_err(|cause| cause.to_string())?, 0);
        up.read_exact(&mut body).map_err(failed)?;
        if sender.send((frame, body)).is_err() {
            return Ok(());
        }
    }
}

impl Frame {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; FRAME_BYTES];
        from.read_exact(&mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let kind = match word(0) {
            0 => Kind::Echo,
            1 => Kind::Keep,
            2 => Kind::Pull,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Self { kind, slot: word(8), bytes: word(16) })
    }

    fn encode(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[0..8].copy_from_slice(&(self.kind as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }
}

/// Writes frame and body, in one system call if the kernel accepts all bytes.
fn write_message(to: &mut impl Write, frame: Frame, body: &[u8]) -> io::Result<()> {
    let head = frame.encode();
    let written = to.write_vectored(&[IoSlice::new(&head), IoSlice::new(body)])?;
    to.write_all(&head[written.min(FRAME_BYTES)..])?;
    to.write_all(&body[written.saturating_sub(FRAME_BYTES)..])?;
    to.flush()
}

/// Sends small frames at once, and limits every wait.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // After this time without a message, the worker has ended unnoticed.
    stream.set_read_timeout(Some(Duration::from_secs(3600)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))
}

/// A self-signed certificate, made for this run.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn create() -> Result<Self, String> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
        Ok(Self { certificate: made.cert.der().clone(), key })
    }

    fn server_config(self) -> Result<ServerConfig, String> {
        ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![self.certificate], self.key))
            .map_err(|error| error.to_string())
    }
}

fn client_config(certificate: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate.to_vec())).map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()));
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The cipher suite of our own data path.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..aws_lc_rs::default_provider()
    }
}

fn client(config: &Arc<ClientConfig>, stream: TcpStream) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
    let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
    let mut connection = ClientConnection::new(Arc::clone(config), name).map_err(|error| error.to_string())?;
    connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    let mut tls = StreamOwned::new(connection, stream);
    tls.conn.complete_io(&mut tls.sock).map_err(|cause| format!("TLS: {cause}"))?;
    Ok(tls)
}

fn server(config: &Arc<ServerConfig>, stream: TcpStream) -> Result<StreamOwned<ServerConnection, TcpStream>, String> {
    let mut connection = ServerConnection::new(Arc::clone(config)).map_err(|error| error.to_string())?;
    connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    let mut tls = StreamOwned::new(connection, stream);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).map_err(|cause| format!("TLS: {cause}"))?;
    }
    Ok(tls)
}

/// The name in the certificate.
const NAME: &str = "localhost";
/// Encrypted bytes that are buffered before a write. The default of 64 KiB makes four times as many system calls.
const TLS_BUFFER_BYTES: usize = 256 << 10;
