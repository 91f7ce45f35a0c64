//! Watches the other ranks. A rank leaves with a goodbye message; otherwise its process is gone.
//!
//! Watches both sockets and processes. A socket shows the end of a process even in another namespace. A process descriptor shows it even
//! while a forked child still holds the socket.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::board::Board;
use crate::collective::ranks::Breakage;
use crate::error::Result;
use crate::local::{Connection, PeerProcess, socket};

/// The connections to the other ranks: the leader has one to every rank, the others have one to the leader.
#[derive(Debug)]
pub(super) struct Watch {
    peers: Vec<Peer>,
    /// Whether the job goes on without a rank that is lost.
    goes_on: bool,
    stop: Connection,
    stopped: Connection,
}

#[derive(Debug)]
struct Peer {
    rank: usize,
    connection: Connection,
    process: Option<PeerProcess>,
}

const GOODBYE: &[u8] = b"bye";

/// The coordinator may say more about the end of a process than that it ended. Its words are on their way then.
const CAUSE_PATIENCE: Duration = Duration::from_millis(250);

impl Watch {
    pub(super) fn new(peers: Vec<(usize, Connection)>, goes_on: bool) -> Result<Self> {
        let (stop, stopped) = Connection::pair()?;
        let peer =
            |(rank, connection): (usize, Connection)| Peer { rank, process: connection.peer_process(), connection };
        Ok(Self { peers: peers.into_iter().map(peer).collect(), goes_on, stop, stopped })
    }

    /// Watches until [`leave`](Self::leave). Calls `left` for a rank that says goodbye; the end of any other rank breaks the board. Where
    /// the job goes on, `lost` is called for it.
    pub(super) fn run(&self, board: &Board, left: impl Fn(usize), lost: impl Fn(usize)) {
        // Where the job goes on, nobody is told the cause.
        let patience = if self.goes_on { Duration::ZERO } else { CAUSE_PATIENCE };
        const FOREVER: Duration = Duration::from_secs(3600);
        let mut watched: Vec<&Peer> = self.peers.iter().collect();
        loop {
            let own = [self.stopped.fd()];
            let sockets = watched.iter().map(|peer| peer.connection.fd());
            let processes = watched.iter().filter_map(|peer| peer.process.as_ref().map(|process| process.life.as_fd()));
            let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(sockets).chain(processes).collect();
            let Ok(ready) = socket::wait_any(&fds, FOREVER) else { return };
            if ready[0] {
                return;
            }
            let has_news = |fd: BorrowedFd<'_>| socket::wait_any(&[fd], Duration::ZERO).is_ok_and(|bits| bits[0]);
            watched.retain(|peer| {
                let spoke = has_news(peer.connection.fd());
                if !spoke && !peer.process.as_ref().is_some_and(PeerProcess::has_ended) {
                    return true;
                }
                let goodbye = spoke && matches!(peer.connection.recv(&mut [0; 8], Duration::ZERO), Ok(Some(_)));
                if goodbye {
                    left(peer.rank);
                } else if !socket::wait_any(&[self.stopped.fd()], patience).is_ok_and(|ready| ready[0]) {
                    // This rank closes `stop` before it closes its connections. It has not done so yet, so the peer has ended.
                    match self.goes_on {
                        true => {
                            board.lose(peer.rank);
                            lost(peer.rank);
                        }
                        // The others hear of it by the failures that follow, and by the launcher.
                        false => board.break_down(Breakage::Lost(peer.rank)),
                    }
                }
                false
            });
        }
    }

    /// Ends [`run`](Self::run) and the connections, with a goodbye if no rank waits for this one.
    pub(super) fn leave(&self, goodbye: bool) {
        self.stop.close();
        for peer in &self.peers {
            if goodbye {
                // A rank that is gone needs no goodbye.
                let _ = peer.connection.send(GOODBYE, &[], Duration::from_secs(1));
            }
            peer.connection.close();
        }
    }
}
