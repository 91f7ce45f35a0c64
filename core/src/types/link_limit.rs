//! What holds the sending on a link.

/// Why a worker sends nothing to a server, or no more than it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkLimit {
    /// The worker has nothing to send to this server.
    App,
    /// As [`App`](Self::App), while parts wait because the credit is used up.
    Credit,
    /// The congestion window of the connection is full, or its packets are paced.
    Cwnd,
    /// The server takes no more before it has read what came.
    Flow,
    /// The socket has no room, because the interface is slower than the worker.
    Socket,
}

impl LinkLimit {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::App, Self::Credit, Self::Cwnd, Self::Flow, Self::Socket];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Credit => "credit",
            Self::Cwnd => "cwnd",
            Self::Flow => "flow",
            Self::Socket => "socket",
        }
    }
}
