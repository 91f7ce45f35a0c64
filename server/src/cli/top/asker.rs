//! Asks the coordinator of a job, and has it ask the members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::identity::Credentials;
use gradlane_core::runtime::{Clock, Operator, recording};
use gradlane_core::types::{ControlCommand, JoinString, Recipient, Role, Time};
use gradlane_core::{Error, Result};

use crate::cli::status::{led_here, names_a_coordinator};
use crate::cli::{ctl, recorders, timelines};
use crate::launch::entering::{Found, Place};
use crate::look::Reading;

/// The operator of a job.
pub(super) struct Asker {
    config: Config,
    /// Where the join string of the coordinator was found.
    place: Place,
    join: JoinString,
    credentials: Credentials,
    /// The connection, until it breaks.
    operator: Option<Operator>,
    clock: Clock,
}

impl Asker {
    /// Connects to the coordinator of the job that the settings name, else of the one that this user leads here.
    pub(super) fn enter(config: Config, patience: Duration) -> Result<Self> {
        let found = ctl::find(&config)?;
        let place = found.place.clone();
        let (join, credentials) = ctl::enrol(&config, found, patience)?;
        let mut asker = Self { config, place, join, credentials, operator: None, clock: Clock::start() };
        asker.operator = Some(asker.connect(patience)?);
        Ok(asker)
    }

    /// The time of its readings.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The state of the job, and the metrics of the members that tell them.
    pub(super) fn read(&mut self, patience: Duration) -> Result<Reading> {
        let status = self.ask(patience, |operator| operator.status(patience))?;
        let at = self.now().since(Time::ZERO);
        let members = ctl::members(&status).collect();
        let mut told = BTreeMap::new();
        for (recipient, outcome) in self.ask(patience, |operator| ctl::gather(operator, members, ANSWER))? {
            let member = match recipient {
                Recipient::Worker(rank) => (Role::Worker, rank.0),
                Recipient::Server(index) => (Role::Server, index.0),
                Recipient::Coordinator => continue,
            };
            if let Some(instance) = outcome.ok().and_then(|stats| ctl::instance(&stats)) {
                told.insert(member, Arc::new(instance));
            }
        }
        Ok(Reading { at, status, told, told_at: BTreeMap::new() })
    }

    /// Has all members write what their flight recorders have. Returns where, or why not.
    pub(super) fn dump(&mut self, now: &Reading, patience: Duration) -> String {
        let directory = recording::DIRECTORY.to_owned();
        let writers = ctl::with_recorders(&now.status);
        match self.ask(patience, |operator| recorders::written(operator, writers, directory, patience)) {
            Ok(told) => told.in_short(),
            Err(error) => error.to_string(),
        }
    }

    /// Has all members record a timeline, or end it. Returns how many do, or why not.
    pub(super) fn record(&mut self, now: &Reading, begins: bool, patience: Duration) -> String {
        let directory = timelines::DIRECTORY.to_owned();
        let command = match begins {
            true => ControlCommand::Timeline { directory, from: 0, steps: None },
            false => ControlCommand::StopTimeline,
        };
        let members = ctl::members(&now.status).collect();
        let told = self.ask(patience, |operator| timelines::in_short(operator, members, &command, patience));
        told.unwrap_or_else(|error| error.to_string())
    }

    /// Whether the coordinator cannot be found any more where it was found, because it took its traces away or its process is gone.
    pub(super) fn nobody_leads(&self) -> bool {
        match &self.place {
            Place::Given if names_a_coordinator(&self.config) => false,
            Place::Given => led_here(&self.config).iter().all(|running| running.operators != self.join),
            place @ (Place::File(_) | Place::Published { .. }) => {
                matches!(Found::at(place.clone(), Duration::ZERO), Err(Error::Unavailable { .. }))
            }
        }
    }

    /// Asks the coordinator, over a new connection if the last one broke.
    fn ask<T>(&mut self, patience: Duration, ask: impl FnOnce(&mut Operator) -> Result<T>) -> Result<T> {
        let mut operator = match self.operator.take() {
            Some(operator) => operator,
            None => self.connect(patience)?,
        };
        let answer = ask(&mut operator);
        // After a timeout it may be busy, and answer the next time.
        if matches!(answer, Ok(_) | Err(Error::Timeout { .. })) {
            self.operator = Some(operator);
        }
        answer
    }

    /// Connects with the certificate that it has, because the join string may be good for one alone. A coordinator that wrote another join
    /// string is another one.
    fn connect(&mut self, patience: Duration) -> Result<Operator> {
        let newer = match &self.place {
            Place::Given => None,
            place @ (Place::File(_) | Place::Published { .. }) => Found::at(place.clone(), Duration::ZERO).ok(),
        };
        if let Some(newer) = newer.filter(|newer| newer.join != self.join) {
            (self.join, self.credentials) = ctl::enrol(&self.config, newer, patience)?;
        }
        Operator::connect(&self.join.address, &self.credentials, self.config.join_timeout.min(patience))
    }
}

/// A member that does not answer within this time is missing on the screen.
const ANSWER: Duration = Duration::from_millis(500);
