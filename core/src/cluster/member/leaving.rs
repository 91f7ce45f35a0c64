//! A member leaves, gives up its work, or breaks down; or its job fails.

use super::super::requests::left;
use super::{Member, Standing};
use crate::cluster::MemberEvent;
use crate::error::Error;
use crate::types::{Role, View};
use crate::wire::Frame;

impl Member {
    /// Leaves in order. Ends in [`MemberEvent::Left`] once all workers have left, or at once if the job has not formed. Unanswered requests
    /// fail. Calling it again changes nothing.
    pub fn leave(&mut self) {
        match self.standing {
            Standing::Joining => {
                if self.line.is_up() {
                    self.send(Frame::Leave);
                }
                self.end_in_order();
            }
            Standing::Active => {
                self.standing = Standing::Leaving;
                self.fail_requests(&left());
                self.ask(Frame::Leave);
            }
            Standing::Leaving | Standing::GivingUp(_) | Standing::Ended(_) => {}
        }
    }

    /// Ends the work of this process because of `cause`. The coordinator counts the process as lost, with this cause. Ends in
    /// [`MemberEvent::Left`] once the coordinator has answered, or is lost too. Unanswered requests fail. A process that has left has
    /// nothing to give up; a process that has not joined just leaves.
    pub fn give_up(&mut self, cause: String) {
        match self.standing {
            Standing::Joining => self.leave(),
            Standing::Active => {
                self.standing = Standing::GivingUp(cause.clone());
                self.fail_requests(&left());
                self.ask(Frame::Fail { cause });
            }
            Standing::Leaving | Standing::GivingUp(_) | Standing::Ended(_) => {}
        }
    }

    /// The job fails for this cause, as this view of it says.
    pub(super) fn handle_failed(&mut self, cause: Error, view: View) {
        let stays = matches!(self.standing, Standing::Joining | Standing::Active);
        if stays && view.phase.forms_again() && self.config.process.role == Role::Server {
            // Even one that missed that the job had formed comes again.
            self.tell(MemberEvent::View(view.clone()));
        }
        self.view = Some(view);
        self.conclude(cause, Some(Frame::Leave));
    }

    /// This process cannot go on, because of `cause`. The coordinator is told, and the membership ends with [`MemberEvent::Failed`].
    pub fn break_down(&mut self, cause: Error) {
        if self.line.is_up() && !matches!(self.standing, Standing::Ended(_)) {
            self.send(Frame::Fail { cause: cause.to_string() });
        }
        self.fail(cause);
    }
}
