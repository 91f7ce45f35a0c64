//! Lets the ranks of a machine meet: the lowest listens, the others connect, and each gets the shared segment.
//!
//! A process that connects must run as the same user. The sockets check that. Its incarnation must also be the one that the
//! view names for its rank.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::board::{Board, Identity};
use super::layout::{Layout, MAGIC};
use super::options::HostOptions;
use crate::error::{Error, Result};
use crate::local::{Connection, PrivateSocket, Segment, socket};

/// The ranks of a machine, connected.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) board: Board,
    /// Connections by position: the leader has one to every rank, the others have one to the leader.
    pub(super) peers: Vec<(usize, Connection)>,
}

const HELLO_BYTES: usize = 64;
/// How often a waiting rank checks whether the job failed.
const LOOK: Duration = Duration::from_millis(100);

/// Meets the other ranks. `failed` returns why it is not to wait any longer, if it is not.
///
/// Ranks meet only if their views name the same lives: one that has not heard of the latest view turns the others away, or is turned away,
/// until it has. An epoch would not do, because a rank may miss a view that changed nothing here.
pub(super) fn meet(options: &HostOptions, failed: &dyn Fn() -> Option<Error>) -> Result<Connected> {
    let lives: Vec<u8> = options
        .ranks
        .iter()
        .flat_map(|rank| rank.rank.0.to_le_bytes().into_iter().chain(rank.incarnation.0.to_le_bytes()))
        .collect();
    let identity = Identity {
        job: xxh3_64(options.job.as_bytes()),
        leader: options.ranks[0].incarnation.0,
        term: u64::from(options.epoch.term),
        ranks: xxh3_64(&lives),
    };
    match (options.me, &options.listener) {
        (0, _) if options.ranks.len() == 1 => Ok(Connected { board: Board::create(1, identity)?, peers: Vec::new() }),
        (0, Some(listener)) => lead(options, identity, listener, failed),
        (0, None) => Err(Error::Internal { what: "the lowest rank of a machine has no listening socket".to_owned() }),
        (_, _) => follow(options, identity, failed),
    }
}

fn lead(
    options: &HostOptions,
    identity: Identity,
    listener: &PrivateSocket,
    failed: &dyn Fn() -> Option<Error>,
) -> Result<Connected> {
    let ranks = options.ranks.len();
    let board = Board::create(ranks, identity)?;
    let mut peers: Vec<(usize, Connection)> = Vec::new();
    let mut waited = Duration::ZERO;
    while peers.len() + 1 < ranks {
        if let Some(error) = failed() {
            return Err(error);
        }
        if waited >= options.join_timeout {
            let came = |rank: &usize| *rank == 0 || peers.iter().any(|(other, _)| other == rank);
            let missing = (0..ranks).filter(|rank| !came(rank)).map(|rank| options.ranks[rank].name.clone()).collect();
            return Err(Error::NotFormed { missing, waited });
        }
        let Some(peer) = listener.accept(LOOK)? else {
            waited += LOOK;
            continue;
        };
        // Refuses strangers, and processes of another job or incarnation, without harm to this job.
        let mut hello = [0; HELLO_BYTES];
        let Ok(Some(received)) = peer.recv(&mut hello, LOOK) else { continue };
        let known = |rank: &usize| hello == greeting(identity, options, *rank);
        let Some(rank) = (1..ranks).find(known).filter(|_| received.bytes == HELLO_BYTES) else {
            tracing::warn!("refused a process on this machine that does not belong to this job, or not yet");
            continue;
        };
        // A rank that comes again has given its first connection up.
        peers.retain(|(other, _)| *other != rank);
        if peer.send(&MAGIC.to_le_bytes(), &[board.segment.fd()], options.join_timeout).is_ok() {
            peers.push((rank, peer));
        }
    }
    Ok(Connected { board, peers })
}

fn follow(options: &HostOptions, identity: Identity, failed: &dyn Fn() -> Option<Error>) -> Result<Connected> {
    let mut waited = Duration::ZERO;
    loop {
        let refused = match introduce(options, identity, &mut waited, failed) {
            Ok((fd, peer)) => {
                let ranks = options.ranks.len();
                let segment = Segment::map(fd, Layout::new(ranks).bytes())?;
                let board = Board::open(segment, ranks, options.me, identity)?;
                return Ok(Connected { board, peers: vec![(0, peer)] });
            }
            Err(refused @ (Error::PeerLost { .. } | Error::Unavailable { .. })) if options.is_again => refused,
            Err(error) => return Err(error),
        };
        if let Some(error) = failed() {
            return Err(error);
        }
        if waited >= options.join_timeout {
            return Err(refused);
        }
        // Nothing but time.
        let _ = socket::wait_any(&[], LOOK);
        waited += LOOK;
    }
}

/// Connects to the leader and says who this rank is. Returns the shared memory. Adds to `waited` for how long that took.
fn introduce(
    options: &HostOptions,
    identity: Identity,
    waited: &mut Duration,
    failed: &dyn Fn() -> Option<Error>,
) -> Result<(OwnedFd, Connection)> {
    let leader = &options.ranks[0];
    let unreachable = |error: Error| match error {
        Error::Unavailable { cause, .. } | Error::Io { cause, .. } => Error::Unavailable {
            what: format!("{} on this machine at {}", leader.name, leader.socket_path),
            cause: format!("{cause}; set local_reduce=off if its files cannot be reached from here"),
        },
        other => other,
    };
    let peer = Connection::connect(Path::new(&leader.socket_path), options.join_timeout).map_err(unreachable)?;
    peer.send(&greeting(identity, options, options.me), &[], options.join_timeout)?;
    let mut reply = [0; 8];
    let turned_away = || Error::PeerLost {
        member: leader.name.clone(),
        host: leader.place.clone(),
        cause: "it closed the connection within this machine; see its log".to_owned(),
    };
    let received = loop {
        match peer.recv(&mut reply, LOOK) {
            Err(late @ Error::Timeout { .. }) => {
                *waited += LOOK;
                if let Some(error) = failed() {
                    return Err(error);
                }
                if *waited >= options.join_timeout {
                    return Err(late);
                }
            }
            received => break received?.ok_or_else(turned_away)?,
        }
    };
    let fd: Option<OwnedFd> = received.fds.into_iter().next();
    let (Some(fd), true) = (fd, reply == MAGIC.to_le_bytes()) else {
        return Err(Error::Incompatible {
            field: "the protocol within a machine".to_owned(),
            ours: format!("{MAGIC:016x}"),
            peer: leader.name.clone(),
            theirs: format!("{:016x}", u64::from_le_bytes(reply)),
        });
    };
    Ok((fd, peer))
}

/// The greeting of `rank`.
fn greeting(identity: Identity, options: &HostOptions, rank: usize) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    let own = options.ranks[rank].incarnation.0;
    let ranks = options.ranks.len() as u64;
    hello[..8].copy_from_slice(&MAGIC.to_le_bytes());
    hello[8..16].copy_from_slice(&identity.job.to_le_bytes());
    hello[16..32].copy_from_slice(&identity.leader.to_le_bytes());
    hello[32..48].copy_from_slice(&own.to_le_bytes());
    hello[48..56].copy_from_slice(&(ranks << 32 | rank as u64).to_le_bytes());
    hello[56..].copy_from_slice(&identity.ranks.to_le_bytes());
    hello
}
