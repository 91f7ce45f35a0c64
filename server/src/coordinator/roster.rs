//! The members of the job: admission, ranks, and which connection speaks for which member.
//!
//! While the job forms, a seat lasts as long as its connection, and ranks are provisional. [`Roster::seal`] fixes both: from then on a seat
//! belongs to one incarnation of one node, and a connection may come and go. Only [`Roster::apply`] removes a member.
//!
//! Members that ask for a rank get it. The others get the lowest free ranks in the order of host name, process id and arrival. So processes
//! of one host have neighbouring ranks, and the order in which a launcher starts processes does not matter. In a job that forms again, those
//! that were there come first, in their order, and nobody gets the rank that it asks for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Incarnation, LinkId, Member, NodeId, Role, Round, Scheme, Time, WorkerId};
use gradlane_core::wire::frame::{Health, Join, Progress};
use gradlane_core::wire::limits;

/// What identifies a member: the node of its certificate and its role. A process that is both worker and server holds two seats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Identity {
    pub(super) node: NodeId,
    pub(super) role: Role,
}

impl Identity {
    pub(super) fn of(member: &Member) -> Self {
        Self { node: member.node, role: member.process.role }
    }
}

/// A member and its state.
#[derive(Debug)]
pub(super) struct Seat {
    /// Its index is meaningless before the seal; see [`Roster::in_order`].
    pub(super) member: Member,
    pub(super) requested: Option<u32>,
    pub(super) arrival: u64,
    pub(super) line: Line,
    /// Its last sign of life.
    pub(super) heard: Time,
    pub(super) health: Health,
    pub(super) progress: Progress,
    /// The connection on which it said last that it leaves. What it says once more there confirms the end of the job.
    pub(super) leaves_on: Option<LinkId>,
    /// Whether it confirmed to have heard of the job's end.
    pub(super) knows_end: bool,
    /// Whether its process has ended, as another member saw.
    pub(super) seen_to_end: Option<SeenToEnd>,
    /// Whether it left in order and the job goes on without it: the view does not show it any more.
    pub(super) is_past: bool,
}

/// That the process of a member has ended.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SeenToEnd {
    /// Who saw it.
    pub(super) witness: String,
    /// The member is given up then.
    pub(super) until: Time,
}

/// The connection of a member.
#[derive(Debug)]
pub(super) enum Line {
    /// This connection speaks for it.
    Up(LinkId),
    /// It has none; the last one ended with this error.
    Down(Error),
}

/// How a member is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Before the seal: its seat is free for another process.
    Free(Identity),
    /// It left in order. It keeps its rank until the job ends.
    Leave(Identity),
    /// It is given up and may not come back. The view that ends the job still shows it.
    GiveUp(Identity),
    /// It is given up, and the job goes on without it. The view does not show it any more, and its rank stays unused.
    Remove(Identity),
}

/// How many workers and servers there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Size {
    pub(super) workers: u32,
    pub(super) servers: u32,
}

/// All seats of the job.
#[derive(Debug)]
pub(super) struct Roster {
    size: Size,
    sealed: bool,
    arrivals: u64,
    seats: BTreeMap<Identity, Seat>,
    /// The workers by rank, once sealed.
    ranks: Vec<Identity>,
    /// If the job had formed before: the members that are expected again, in their order. Others may come, until it has as many as it may.
    again: Option<Vec<Member>>,
    /// Incarnations that were replaced or given up, the oldest first, at most as many as there can be members. An older one that comes back
    /// is refused as a stranger.
    fenced: VecDeque<(NodeId, Incarnation)>,
}

impl Roster {
    pub(super) fn new(size: Size) -> Self {
        let (seats, ranks, fenced) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Self { size, sealed: false, arrivals: 0, seats, ranks, again: None, fenced }
    }

    /// The roster of a job that forms again, of at most this size. These members are `expected`.
    pub(super) fn again(size: Size, expected: Vec<Member>) -> Self {
        Self { again: Some(expected), ..Self::new(size) }
    }

    /// The members that are expected when the job forms again, by their order.
    pub(super) fn expected(&self) -> Vec<Member> {
        let member = |(index, former): (u32, &Member)| Member { index, first_round: Round(0), ..former.clone() };
        let of = |role| self.again.iter().flatten().filter(move |former| former.process.role == role);
        Role::OF_MEMBERS.into_iter().flat_map(|role| (0..).zip(of(role)).map(member)).collect()
    }

    /// A member is not expected any more. Returns it, if it was.
    pub(super) fn expect_no_more(&mut self, host: &str, pid: u32) -> Option<Member> {
        self.again.as_mut().and_then(|again| take_out(again, host, pid))
    }

    /// Whether at least so many members have come.
    pub(super) fn suffices(&self, fewest: Size) -> bool {
        Role::OF_MEMBERS.into_iter().all(|role| self.count(role) >= fewest.of(role) as usize)
    }

    /// How many members of this role the job has, or has now while it forms.
    fn count(&self, role: Role) -> usize {
        self.seats.keys().filter(|identity| identity.role == role).count()
    }

    /// Whether there is no place for this process, because all of its role have come, or the others are expected.
    pub(super) fn has_no_place_for(&self, identity: Identity) -> bool {
        let known = self.seats.keys().copied().chain(self.again.iter().flatten().map(Identity::of));
        let taken: BTreeSet<Identity> = known.filter(|other| other.role == identity.role).collect();
        taken.len() >= self.size.of(identity.role) as usize && !taken.contains(&identity)
    }

    /// How many workers the job has, or may have while it forms, and how many servers.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Seats a new member before the seal, in place of an earlier incarnation of the same node.
    ///
    /// # Errors
    /// Why there is no seat for it.
    pub(super) fn admit(&mut self, now: Time, link: LinkId, node: NodeId, join: Join) -> Result<()> {
        assert!(!self.sealed, "the caller asks only while the job forms");
        let identity = Identity { node, role: join.process.role };
        self.check_join(&join)?;
        let others = || self.seats.iter().filter(|(other, _)| **other != identity && other.role == join.process.role);
        if let Some(holder) =
            others().map(|(_, seat)| seat).find(|seat| seat.requested == join.requested && seat.requested.is_some())
        {
            return Err(duplicate(&join, holder));
        }
        // A member finds itself in a view by its incarnation.
        if others().any(|(_, seat)| seat.incarnation() == join.process.incarnation) {
            return Err(Error::InvalidArgument {
                what: "the incarnation of another process".to_owned(),
                hint: "draw 128 random bits at each start of a process".to_owned(),
            });
        }
        if self.has_no_place_for(identity) {
            let places = self.size.of(join.process.role);
            return Err(Error::FailedPrecondition {
                what: format!("the job has its {places} {}s already", join.process.role),
                hint: "start no more, or a larger job".to_owned(),
            });
        }
        let member = Member { process: join.process, node, index: 0, first_round: Round(0) };
        let seat = self.seated(now, link, join.requested.filter(|_| self.again.is_none()), member);
        let life = seat.incarnation();
        if let Some(earlier) = self.seats.insert(identity, seat)
            && earlier.incarnation() != life
        {
            self.fence(node, earlier.incarnation());
        }
        Ok(())
    }

    /// Seats a member of a job that had formed before. Returns whether it has a place there.
    pub(super) fn seat_again(&mut self, now: Time, link: LinkId, member: Member) -> bool {
        let (identity, index) = (Identity::of(&member), member.index);
        let is_taken = |seat: &Seat| seat.identity().role == identity.role && seat.requested == Some(index);
        if index >= self.size.of(identity.role) || self.seats.contains_key(&identity) || self.seats().any(is_taken) {
            return false;
        }
        let seat = self.seated(now, link, Some(index), member);
        self.seats.insert(identity, seat);
        true
    }

    fn seated(&mut self, now: Time, link: LinkId, requested: Option<u32>, member: Member) -> Seat {
        self.arrivals += 1;
        Seat {
            requested,
            arrival: self.arrivals,
            line: Line::Up(link),
            heard: now,
            health: Health::Alive,
            progress: Progress::default(),
            leaves_on: None,
            knows_end: false,
            seen_to_end: None,
            is_past: false,
            member,
        }
    }

    /// Why a process that is no member cannot join after the seal.
    pub(super) fn refuse_late(&self, join: &Join) -> Error {
        if let Err(error) = self.check_join(join) {
            return error;
        }
        let holder = join.requested.and_then(|index| {
            self.seats.values().find(|seat| seat.member.process.role == join.process.role && seat.member.index == index)
        });
        match holder {
            Some(holder) if holder.health == Health::Alive => duplicate(join, holder),
            Some(_) | None => self.refuse_newcomers(),
        }
    }

    /// Why nobody new can join after the seal.
    pub(super) fn refuse_newcomers(&self) -> Error {
        let Size { workers, servers } = self.size;
        Error::FailedPrecondition {
            what: format!("the job is complete with {workers} workers and {servers} servers, and runs"),
            hint: "a join string of the coordinator lets nobody in any more; an elastic job takes in processes with a token \
                   (`gradlane token new`), and any other job has to be started again as a whole"
                .to_owned(),
        }
    }

    /// Whether every member is there.
    pub(super) fn is_complete(&self) -> bool {
        match &self.again {
            None => self.seats.len() == (self.size.workers + self.size.servers) as usize,
            Some(_) => self.suffices(Size { workers: 1, servers: 1 }) && self.absent().next().is_none(),
        }
    }

    /// Fixes seats and ranks.
    pub(super) fn seal(&mut self) {
        assert!(self.again.is_some() || self.is_complete(), "sealed once nobody is missing");
        for (identity, index) in self.numbering() {
            self.seats.get_mut(&identity).expect("numbered from the seats").member.index = index;
        }
        let mut workers: Vec<&Seat> =
            self.seats.values().filter(|seat| seat.member.process.role == Role::Worker).collect();
        workers.sort_by_key(|seat| seat.member.index);
        self.ranks = workers.into_iter().map(Seat::identity).collect();
        let count = |role| u32::try_from(self.count(role)).expect("at most MEMBERS_MAX");
        self.size = Size { workers: count(Role::Worker), servers: count(Role::Server) };
        self.sealed = true;
    }

    /// The missing members, as `worker 2`: the ranks that would be free if the others came now.
    pub(super) fn missing(&self) -> Vec<String> {
        if let Some(expected) = &self.again {
            let is_known = |role| self.count(role) > 0 || expected.iter().any(|expected| expected.process.role == role);
            let absent = self.absent().map(|member| format!("{} on {}", member.process.role, member.process.place()));
            return absent
                .chain(Role::OF_MEMBERS.into_iter().filter(|role| !is_known(*role)).map(|role| format!("a {role}")))
                .collect();
        }
        let numbering = self.numbering();
        let missing = |role: Role| {
            let taken: BTreeSet<u32> =
                numbering.iter().filter(|(identity, _)| identity.role == role).map(|(_, index)| *index).collect();
            (0..self.size.of(role))
                .filter(move |index| !taken.contains(index))
                .map(move |index| format!("{role} {index}"))
        };
        Role::OF_MEMBERS.into_iter().flat_map(missing).collect()
    }

    /// The members that were expected again and have not come.
    pub(super) fn absent(&self) -> impl Iterator<Item = &Member> {
        self.again.iter().flatten().filter(|expected| !self.seats.contains_key(&Identity::of(expected)))
    }

    /// All members in the order of a view: workers by rank, then servers by index. Before the seal these are the indices if no other
    /// process came.
    pub(super) fn in_order(&self) -> Vec<(Member, &Seat)> {
        let numbering = if self.sealed { BTreeMap::new() } else { self.numbering() };
        let mut members: Vec<(Member, &Seat)> = self
            .seats
            .iter()
            .map(|(identity, seat)| {
                let index = numbering.get(identity).copied().unwrap_or(seat.member.index);
                (Member { index, ..seat.member.clone() }, seat)
            })
            .collect();
        members.sort_by_key(|(member, _)| (member.process.role, member.index));
        members
    }

    pub(super) fn seat(&self, identity: Identity) -> Option<&Seat> {
        self.seats.get(&identity)
    }

    pub(super) fn seat_mut(&mut self, identity: Identity) -> Option<&mut Seat> {
        self.seats.get_mut(&identity)
    }

    /// All seats, in an order that is the same on every run.
    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values()
    }

    pub(super) fn seats_mut(&mut self) -> impl Iterator<Item = &mut Seat> {
        self.seats.values_mut()
    }

    /// The connections of the members that are not given up.
    pub(super) fn links(&self, wanted: impl Fn(Identity) -> bool) -> Vec<LinkId> {
        let seats = self.seats().filter(|seat| seat.health != Health::Dead && wanted(seat.identity()));
        seats.filter_map(Seat::link).collect()
    }

    /// The worker with this rank, once sealed.
    pub(super) fn worker(&self, rank: WorkerId) -> Option<&Seat> {
        self.ranks.get(rank.0 as usize).and_then(|identity| self.seats.get(identity))
    }

    /// Whether no working worker is left.
    pub(super) fn all_workers_left(&self) -> bool {
        self.seats.values().all(|seat| seat.member.process.role != Role::Worker || seat.health == Health::Left)
    }

    /// Whether every living member has confirmed the end. Sending it is not enough, because the connection may have been lost.
    pub(super) fn all_know_end(&self) -> bool {
        self.seats.values().all(|seat| seat.health == Health::Dead || seat.knows_end)
    }

    /// Whether the job formed.
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// `worker 2`; before the seal, `worker`.
    pub(super) fn name(&self, identity: Identity) -> String {
        match self.seats.get(&identity) {
            Some(seat) if self.sealed => seat.member.name(),
            Some(_) | None => identity.role.to_string(),
        }
    }

    /// Changes the membership. Returns whether that changed anything.
    pub(super) fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Free(identity) => {
                assert!(!self.sealed, "seats are free again only before the job formed");
                self.seats.remove(&identity).is_some()
            }
            Change::Leave(identity) => self.set_health(identity, Health::Left),
            Change::GiveUp(identity) => {
                if let Some(life) = self.seats.get(&identity).map(Seat::incarnation) {
                    self.fence(identity.node, life);
                }
                self.set_health(identity, Health::Dead)
            }
            Change::Remove(identity) => match self.seats.remove(&identity) {
                Some(seat) => {
                    self.fence(identity.node, seat.incarnation());
                    true
                }
                None => false,
            },
        }
    }

    fn set_health(&mut self, identity: Identity, health: Health) -> bool {
        self.seats.get_mut(&identity).is_some_and(|seat| std::mem::replace(&mut seat.health, health) != health)
    }

    /// Remembers an incarnation that may not come back.
    fn fence(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.fenced.len() == limits::MEMBERS_MAX {
            self.fenced.pop_front();
        }
        self.fenced.push_back((node, incarnation));
    }

    /// Whether this incarnation was replaced or given up.
    pub(super) fn is_fenced(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.fenced.contains(&(node, incarnation))
    }

    fn check_join(&self, join: &Join) -> Result<()> {
        // A job that forms again has another number of workers than it began with, and perhaps fewer servers.
        let (workers, servers) = if self.again.is_none() { (join.workers, join.servers) } else { (0, 0) };
        for (field, ours, theirs) in
            [("number of workers", workers, self.size.workers), ("number of servers", servers, self.size.servers)]
        {
            if ours != 0 && ours != theirs {
                // From the view of the refused process, because it shows the error.
                return Err(Error::Incompatible {
                    field: field.to_owned(),
                    ours: ours.to_string(),
                    peer: "the coordinator".to_owned(),
                    theirs: theirs.to_string(),
                });
            }
        }
        let places = self.size.of(join.process.role);
        match join.requested {
            Some(index) if index >= places && self.again.is_none() => Err(Error::InvalidArgument {
                what: format!("{} {index} of a job with {places} {}s", join.process.role, join.process.role),
                hint: format!("ask for less than {places}, or for none to have one assigned"),
            }),
            Some(_) | None if join.process.role == Role::Server && join.process.addresses.is_empty() => {
                Err(Error::InvalidArgument {
                    what: "a server without an address".to_owned(),
                    hint: format!("announce where it accepts exchanges; the schemes are {}", Scheme::known()),
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn numbering(&self) -> BTreeMap<Identity, u32> {
        let mut numbering = BTreeMap::new();
        for role in Role::OF_MEMBERS {
            let (asked, mut free): (Vec<&Seat>, Vec<&Seat>) = self
                .seats
                .values()
                .filter(|seat| seat.member.process.role == role)
                .partition(|seat| seat.requested.is_some());
            let taken: BTreeSet<u32> = asked.iter().filter_map(|seat| seat.requested).collect();
            let expected = |seat: &Seat| {
                let again = self.again.iter().flatten();
                again.into_iter().position(|expected| Identity::of(expected) == seat.identity()).unwrap_or(usize::MAX)
            };
            free.sort_by_key(|seat| (expected(seat), &seat.member.process.host, seat.member.process.pid, seat.arrival));
            let lowest = (0..self.size.of(role)).filter(|index| !taken.contains(index));
            numbering.extend(asked.iter().filter_map(|seat| Some((seat.identity(), seat.requested?))));
            numbering.extend(free.iter().map(|seat| seat.identity()).zip(lowest));
        }
        numbering
    }
}

impl Seat {
    pub(super) fn identity(&self) -> Identity {
        Identity::of(&self.member)
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.member.process.incarnation
    }

    /// The connection that speaks for it.
    pub(super) fn link(&self) -> Option<LinkId> {
        match self.line {
            Line::Up(link) => Some(link),
            Line::Down(_) => None,
        }
    }

    /// Whether the job still counts on it.
    pub(super) fn is_present(&self) -> bool {
        match self.health {
            Health::Alive | Health::Suspect => true,
            Health::Dead | Health::Left => false,
        }
    }
}

impl Size {
    pub(super) fn of(self, role: Role) -> u32 {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
            Role::Coordinator | Role::Observer | Role::Admin => 0,
        }
    }
}

/// Takes the member that is this process out of those that are expected.
pub(super) fn take_out(expected: &mut Vec<Member>, host: &str, pid: u32) -> Option<Member> {
    let at = expected.iter().position(|expected| expected.process.is(host, pid))?;
    Some(expected.remove(at))
}

fn duplicate(join: &Join, holder: &Seat) -> Error {
    let index = join.requested.expect("only a rank that was asked for can be taken");
    Error::DuplicateRank { member: format!("{} {index}", join.process.role), holder: holder.member.place() }
}
