//! A coordinator takes up the job of one that was killed: it replays the inputs that the other one wrote down.

use std::collections::BTreeMap;

use gradlane_core::config::{OnServerLoss, verdict_time};
use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::LayoutConfig;
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{LinkId, Phase, Role, Time, View, WorkerId};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Coordinator;
use crate::coordinator::CoordinatorConfig;
use crate::coordinator::connections::Link;
use crate::coordinator::journal::{Entry, Record, damaged, lasts};
use crate::coordinator::missed::Missed;
use crate::coordinator::registry::Registry;
use crate::coordinator::roster::{Identity, Line, Roster, Size};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::{Lost, Policy};

/// The connections of the members while records are replayed.
#[derive(Default)]
struct Replayed {
    links: BTreeMap<Identity, LinkId>,
    last: u64,
}

impl Coordinator {
    /// A coordinator that goes on with the job of these records, from their last time on, which is returned too: its clock goes on from
    /// there. No member has a connection. Nobody is given up before twice `dead_timeout` has passed, so that all can reconnect.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the records make no sense; [`Error::Config`] if the settings are not those of the job.
    pub fn recover(config: CoordinatorConfig, records: impl IntoIterator<Item = Record>) -> Result<(Self, Time)> {
        let mut records = records.into_iter();
        let Some(Record(Entry::Formed { at, form: theirs, view })) = records.next() else {
            return Err(damaged("it does not begin with the members of the job"));
        };
        let ours = form(&config);
        if ours != theirs {
            return Err(Error::Config {
                knob: "resume".to_owned(),
                problem: format!("is set, but the settings are those of another job: {ours} instead of {theirs}"),
                hint: "start the coordinator as it was started first".to_owned(),
            });
        }
        let journals = config.journals;
        let mut this = Self::new(CoordinatorConfig { journals: false, ..config }, view.epoch.term, at);
        let mut replayed = Replayed::default();
        this.take_up(at, view, &mut replayed)?;
        let mut now = at;
        for record in records {
            now = record.at().map_or(now, |at| at.max(now));
            this.replay(now, record.0, &mut replayed)?;
            this.connections.drop_commands();
        }
        if planted(this.config.defect, Defect::WaitForgotten) {
            this.config.policy = this.config.policy.without_leavers(u32::MAX);
        }
        // From here on a third coordinator must know it too.
        this.config.journals = journals;
        this.wait_for_members(now, &replayed);
        this.write_down(Entry::TakenUp { at: now });
        this.wait_again(now);
        // Those that waited come again.
        if this.newcomers.are_there() {
            this.newcomers.recall(Size::default());
            this.write_down(Entry::Gone { waiting: Size::default() });
        }
        Ok((this, now))
    }

    /// Writes down an input, before anybody hears what follows from it.
    pub(super) fn write_down(&mut self, entry: Entry) {
        if self.config.journals && matches!(self.stage, Stage::Running) {
            self.connections.journal(Record(entry));
        }
    }

    /// Writes down what a member said, if that lasts.
    pub(super) fn write_down_frame(&mut self, at: Time, member: Identity, frame: &Frame) {
        if self.config.journals && lasts(frame) {
            self.write_down(Entry::Said { at, member, frame: frame.clone() });
        }
    }

    /// Writes down that the job has formed.
    pub(super) fn write_down_job(&mut self, at: Time, view: &View) {
        self.write_down(Entry::Formed { at, form: form(&self.config), view: view.clone() });
    }

    /// Writes down who is expected to form the job again, what the store has kept, and what those hear that have missed the end.
    pub(super) fn write_down_expected(&mut self, at: Time) {
        if !self.config.journals {
            return;
        }
        let view = View { members: self.roster.expected(), ..self.view() };
        let formed = Entry::Formed { at, form: form(&self.config), view };
        let kept = self.store.values().map(|(key, value)| Entry::Kept { key: key.to_owned(), value: value.to_vec() });
        let farewells = self.farewells.iter().map(|(member, (life, frame))| {
            let (member, life, frame) = (*member, *life, frame.clone());
            Entry::Farewell { member, life, frame }
        });
        for entry in std::iter::once(formed).chain(self.missed.entry()).chain(kept).chain(farewells) {
            self.connections.journal(Record(entry));
        }
    }

    /// The job begins with these members, or expects them to form it again.
    fn take_up(&mut self, at: Time, view: View, replayed: &mut Replayed) -> Result<()> {
        self.epoch = view.epoch;
        if view.phase == Phase::Forming {
            self.expect(at, view.formed_before, view.members);
            return Ok(());
        }
        (self.formed_before, self.formed_servers) = (view.formed_before, view.formed_servers);
        self.formed_together = view.formed_together;
        if view.formed_before > 0 {
            // It has another number of workers than it began with.
            let workers = u32::try_from(view.workers().count()).map_err(|_| damaged("it has too many members"))?;
            let size = Size { workers, servers: view.formed_servers };
            self.roster = Roster::new(size);
            self.count_members(size);
        }
        for member in &view.members {
            let identity = Identity::of(member);
            let link = self.connect_again(identity, replayed);
            if !self.roster.seat_again(at, link, member.clone()) {
                return Err(damaged("a member has no place"));
            }
        }
        if !self.roster.is_complete() {
            return Err(damaged("members of the job are missing"));
        }
        self.roster.seal();
        self.stage = Stage::Running;
        self.boundaries.form(self.stepping_workers());
        self.registry = Some(Registry::new(self.config.layout, &view, self.config.stall_interval));
        self.forget_replaced();
        self.connections.drop_commands();
        Ok(())
    }

    fn replay(&mut self, now: Time, entry: Entry, replayed: &mut Replayed) -> Result<()> {
        match entry {
            Entry::Formed { view, .. } => {
                if self.roster.is_sealed() {
                    return Err(damaged("the job forms twice"));
                }
                self.take_up(now, view, replayed)?;
            }
            Entry::Up(member) => {
                let link = self.connect_again(member, replayed);
                let has_left =
                    self.worker_at(link).is_some_and(|(_, worker)| self.boundaries.released(worker).is_some());
                if let Some(seat) = self.roster.seat_mut(member).filter(|_| !has_left) {
                    seat.line = Line::Up(link);
                }
            }
            Entry::Down(member) => {
                if let Some(link) = replayed.links.remove(&member) {
                    self.handle_disconnected(link, restarted());
                }
            }
            Entry::Said { member, frame, .. } => {
                if let Some(link) = replayed.links.get(&member) {
                    self.handle_frame(now, *link, frame);
                }
            }
            Entry::Lost { lost, .. } => {
                let lost = lost.into_iter().map(|(identity, cause)| Lost { identity, cause });
                self.lose(now, lost.collect());
            }
            Entry::Late { .. } => self.expire(now),
            Entry::Recovered { .. } => self.end_recovery(),
            Entry::TakenUp { at } => self.wait_again(at),
            Entry::WokeUp { at } => self.wake_up(at),
            Entry::Came { waiting, .. } => {
                self.newcomers.recall(waiting);
                self.advance_steps(now);
            }
            Entry::Gone { waiting } => self.newcomers.recall(waiting),
            Entry::Before { left, lost } => self.missed = Missed { left, lost },
            Entry::Farewell { member, life, frame } => drop(self.farewells.insert(member, (life, frame))),
            Entry::WentBack { bases } => self.clocks.begin_at(&bases),
            Entry::Kept { key, value } => {
                if !self.store.put_back(key, value) {
                    return Err(damaged("the store has no room for what it had"));
                }
            }
        }
        Ok(())
    }

    /// A connection that speaks for this member, in the place of the one that it had.
    fn connect_again(&mut self, member: Identity, replayed: &mut Replayed) -> LinkId {
        let present = replayed.links.get(&member).copied();
        let speaks = |link: &LinkId| {
            self.connections.get(*link).is_some_and(|Link { speaks_for, .. }| speaks_for == Some(member))
        };
        if let Some(link) = present.filter(speaks) {
            return link;
        }
        replayed.last += 1;
        // Far above those of real connections, which count from 0.
        let link = LinkId(u64::MAX - replayed.last);
        self.connections.add(link, member.node, member.role);
        self.connections.assign(link, Some(member));
        replayed.links.insert(member, link);
        link
    }

    /// The connections were those of the former coordinator.
    fn wait_for_members(&mut self, now: Time, replayed: &Replayed) {
        for link in replayed.links.values() {
            self.handle_disconnected(*link, restarted());
        }
        self.connections.drop_all();
        let patient_until = now + self.config.dead_timeout;
        for seat in self.roster.seats_mut() {
            seat.heard = patient_until;
            if seat.health == Health::Suspect {
                seat.health = Health::Alive;
            }
        }
        self.failure_detector.watch(patient_until);
        self.recovery.wait_again(patient_until);
        match &mut self.stage {
            Stage::Forming { until } => *until = now + self.config.reform_timeout,
            Stage::Closing { until, .. } => *until = now + self.config.end_grace,
            Stage::Running | Stage::Finished { .. } => {}
        }
    }

    /// The workers that stand at a boundary wait anew for the others, which have to come back first, and those at a barrier say so again.
    pub(in crate::coordinator) fn wait_again(&mut self, now: Time) {
        self.boundaries.wait_again(now);
        self.barriers.wait_again();
        self.clocks.wait_again();
    }

    /// This coordinator was asleep. What members have said since waits in its sockets, and others have to connect again, so nothing ends because
    /// it is late.
    pub(super) fn wake_up(&mut self, now: Time) {
        let until = now + verdict_time(self.config.dead_timeout);
        self.barriers.be_patient(until);
        self.clocks.be_patient(until);
        self.store.be_patient(until);
        self.boundaries.wait_again(now);
        self.recovery.wait_again(now);
    }

    /// All that a coordinator which recovers must know again.
    #[cfg(test)]
    pub(in crate::coordinator) fn lasting(&self) -> String {
        let seats: Vec<_> =
            self.roster.seats().map(|seat| (seat.member.name(), seat.is_present(), seat.is_past)).collect();
        // While the job forms again, those that have come come again.
        let seats = if self.roster.is_sealed() { seats } else { Vec::new() };
        let names = (&self.registry, &self.endings);
        format!(
            "{:#?}",
            (
                self.epoch,
                self.view().phase,
                seats,
                &self.barriers,
                &self.clocks,
                &self.boundaries,
                &self.last_passed,
                names
            )
        )
    }

    /// The worker that a connection speaks for, and its rank.
    pub(super) fn worker_at(&self, link: LinkId) -> Option<(Identity, WorkerId)> {
        let identity = self.connections.get(link)?.speaks_for.filter(|identity| identity.role == Role::Worker)?;
        self.roster.seat(identity).map(|seat| (identity, WorkerId(seat.member.index)))
    }
}

/// The settings that a coordinator must have to replay the records of another one, in words.
fn form(config: &CoordinatorConfig) -> String {
    let CoordinatorConfig { job, workers, servers, workers_max, policy, layout, .. } = config;
    let LayoutConfig { partition_bytes, fuse_bytes, part_bytes_min, pipeline_bytes_min } = layout;
    let policy = match policy {
        Policy::Abort => "abort".to_owned(),
        Policy::Continue { min_workers, rejoin, on_server_loss } => {
            let word = if rejoin.is_some() { "wait" } else { "continue" };
            let servers = match on_server_loss {
                OnServerLoss::Abort => "",
                OnServerLoss::Continue => ", on_server_loss continue",
                OnServerLoss::Restore => ", on_server_loss restore",
            };
            format!("{word} with {min_workers} workers{servers}")
        }
    };
    let most = workers_max.map_or_else(String::new, |most| format!(" (at most {most})"));
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "job {job} of gradlane {version} with {workers} workers{most} and {servers} servers, on_worker_loss {policy}, parts of {partition_bytes}, \
         {fuse_bytes}, {part_bytes_min} and {pipeline_bytes_min} bytes"
    )
}

/// How the connections of the former coordinator ended.
fn restarted() -> Error {
    Error::Unavailable { what: "the coordinator".to_owned(), cause: "it was started again".to_owned() }
}
