//! A plain transfer over TCP between two machines: measures what the links carry and how much of it kernel TCP uses.

use std::io::{Read, Write, stdin};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::fabric::{Fabric, Machine, Place};
use crate::measure::time;
use crate::team::process::{Process, role};

/// The time and the frames of a transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Transfer {
    /// Time until the last byte had arrived, in the slower direction.
    pub(crate) seconds: f64,
    /// Bytes of frames that the sender's link carried meanwhile.
    pub(crate) wire_bytes: u64,
}

/// Sends `bytes` from one machine to another and, if `both`, as many back at the same time.
///
/// # Errors
/// What went wrong on one of the machines.
pub(crate) fn transfer(
    fabric: &Fabric,
    from: Machine,
    to: Machine,
    bytes: u64,
    both: bool,
) -> Result<Transfer, String> {
    let start = |machine: Machine| {
        Process::start(&format!("probe {}", machine.0), role("probe", &fabric.words(Place::Machine(machine)))?)
    };
    let before = fabric.traffic()?[usize::from(from.0)];
    let (mut receiver, mut sender) = (start(to)?, start(from)?);
    receiver.tell(&format!("listen {}", if both { bytes } else { 0 }))?;
    let port = receiver.line(PATIENCE)?;
    sender.tell(&format!("connect {}:{port} {bytes}", to.address()))?;
    let mut slowest: f64 = 0.0;
    for (process, due) in [(&mut receiver, bytes), (&mut sender, if both { bytes } else { 0 })] {
        let line = process.line(PATIENCE)?;
        let (got, seconds) = line
            .split_once(' ')
            .and_then(|(got, seconds)| Some((got, seconds.parse::<f64>().ok()?)))
            .ok_or_else(|| format!("a probe said {line:?}"))?;
        if got != due.to_string() {
            return Err(format!("only {got} of {due} bytes arrived over TCP"));
        }
        slowest = slowest.max(seconds);
    }
    let used = fabric.traffic()?[usize::from(from.0)].since(before);
    Ok(Transfer { seconds: slowest, wire_bytes: used.sent.bytes })
}

/// The hidden role `probe`: one end of a transfer, as the first line of standard input says.
///
/// # Errors
/// What went wrong.
pub(crate) fn obey() -> Result<(), String> {
    let mut line = String::new();
    let text = |error: std::io::Error| error.to_string();
    stdin().read_line(&mut line).map_err(text)?;
    let (stream, send) = match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["listen", bytes] => {
            let listener = TcpListener::bind("0.0.0.0:0").map_err(text)?;
            println!("{}", listener.local_addr().map_err(text)?.port());
            (listener.accept().map_err(text)?.0, bytes.parse())
        }
        ["connect", address, bytes] => {
            let address: SocketAddr = address.parse().map_err(|_| format!("{address:?} is no address"))?;
            (TcpStream::connect(address).map_err(text)?, bytes.parse())
        }
        _ => return Err(format!("{line:?} is no command for a probe")),
    };
    let send: u64 = send.map_err(|_| format!("{line:?} gives no number of bytes"))?;
    let mut received = Ok(0);
    let taken = time(|| received = exchange(&stream, send));
    println!("{} {}", received.map_err(text)?, taken.as_secs_f64());
    Ok(())
}

/// Sends `send` bytes, receives until the other side has sent all of its own, and returns how many arrived.
fn exchange(stream: &TcpStream, send: u64) -> std::io::Result<u64> {
    let piece = vec![1; 1 << 20];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut left = send;
            while left > 0 {
                let now = left.min(piece.len() as u64);
                let mut stream = stream;
                stream.write_all(&piece[..usize::try_from(now).expect("at most a piece")])?;
                left -= now;
            }
            stream.shutdown(Shutdown::Write)
        });
        let mut buffer = vec![0; 1 << 20];
        let mut received = 0;
        let mut stream = stream;
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                bytes => received += bytes as u64,
            }
        }
        sender.join().expect("it does not panic")?;
        Ok(received)
    })
}

/// The longest time that a transfer may take.
const PATIENCE: Duration = Duration::from_secs(300);
