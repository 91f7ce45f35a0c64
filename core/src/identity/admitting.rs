//! Who may have a certificate of a job: a process that knows the job's own secret, or an invitation.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::authority::{Authority, draw};
use super::invitation::{self, Invitation};
use super::validity::wall_clock;
use crate::error::{Error, Result};
use crate::local::private_file::{self, IfOpen};
use crate::types::Role;
use crate::types::join::JoinString;

impl Authority {
    /// Makes a further join string for the job of `join`, whose authority is kept in `dir`. It lets in `uses` processes of `role` within `lasts`.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if `dir` does not hold the authority of that job, [`Error::Io`] if it cannot be written.
    pub fn invite(
        dir: &Path,
        job: &str,
        join: &JoinString,
        role: Role,
        uses: u32,
        lasts: Duration,
    ) -> Result<JoinString> {
        let leads = |authority: &Self| authority.join_string("").ca_hash == join.ca_hash;
        if !Self::load(dir, job)?.as_ref().is_some_and(leads) {
            return Err(Error::FailedPrecondition {
                what: format!("the coordinator of job {job} does not keep its authority in {}", dir.display()),
                hint: "tokens need a coordinator that was started with `gradlane coordinator` and this state directory"
                    .to_owned(),
            });
        }
        let invitation = Invitation { role, uses, until: invitation::end(wall_clock(), lasts), secret: draw()? };
        private_file::directory(&invitation::folder(dir), IfOpen::Refuse)?;
        private_file::write(&invitation.path(dir), invitation.text())?;
        Ok(JoinString { secret: invitation.secret, ..join.clone() })
    }

    /// Makes a join string for one process of `role`, which may come within `lasts`. The job's coordinator listens at `address`. The invitation
    /// is kept in memory, so it also works for an authority that is kept nowhere.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are too many that no process has used yet.
    pub fn invite_here(&self, address: &str, role: Role, lasts: Duration) -> Result<JoinString> {
        let now = wall_clock();
        let invitation = Invitation { role, uses: 1, until: invitation::end(now, lasts), secret: draw()? };
        let join = JoinString { secret: invitation.secret, ..self.join_string(address) };
        self.invitations.lock().unwrap_or_else(PoisonError::into_inner).keep_here(invitation, now)?;
        Ok(join)
    }

    /// Certifies the key of a signing request as `role`, if the requester knows a secret that permits it. `knows` says whether the requester
    /// knows a given secret. Each certificate uses up one use of an invitation. A certificate for an observer uses up none. If the job is
    /// `closed`, its own secret is not enough, and a requester that knows it is told why.
    ///
    /// # Errors
    /// [`Error::Auth`] if the requester knows no secret of the job, or only the job's own and wants to give orders. [`Error::Token`] if it knows an invitation that is for another role, used up
    /// or too old. Why the job is closed.
    pub(crate) fn admit(
        &self,
        request: &[u8],
        role: Role,
        peer: &str,
        knows: impl Fn(&[u8; 16]) -> bool,
        closed: Option<&Error>,
    ) -> Result<CertificateDer<'static>> {
        if knows(&self.secret) {
            if role == Role::Admin {
                return Err(Error::Auth {
                    problem: "the join string of the job is for its members, and giving orders needs an admin token"
                        .to_owned(),
                    hint: "make one with `gradlane token new --role admin` where the coordinator runs".to_owned(),
                });
            }
            return closed.map_or_else(|| self.sign(request, role, peer), |why| Err(why.clone()));
        }
        let refused = |problem: String| {
            let hint = format!("make one with `gradlane token new --role {role}` where the coordinator runs");
            Error::Token { problem, hint }
        };
        if knows(&self.operators_secret()) {
            return match role {
                Role::Admin | Role::Observer => self.sign(request, role, peer),
                Role::Worker | Role::Server | Role::Coordinator => {
                    Err(refused(format!("is for an admin, not for {}", with_article(role))))
                }
            };
        }
        let now = wall_clock();
        let dir = self.dir.as_deref();
        // Held until the use is counted, so that two requesters cannot have the same use.
        let mut invitations = self.invitations.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = invitations.known(dir, now, knows)? else {
            return Err(Error::Auth {
                problem: format!("the secret in the join string is not that of job {}", self.job()),
                hint: "copy the whole join string of the job that runs now".to_owned(),
            });
        };
        if let Some(fault) = known.fault(now) {
            return Err(refused(fault));
        }
        if role == Role::Observer {
            return self.sign(request, role, peer);
        }
        if role != known.role {
            return Err(refused(format!("is for {}, not for {}", with_article(known.role), with_article(role))));
        }
        let certificate = self.sign(request, role, peer)?;
        invitations.count_use(dir, &known)?;
        Ok(certificate)
    }
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Worker => "a worker",
        Role::Server => "a server",
        Role::Coordinator => "a coordinator",
        Role::Observer => "an observer",
        Role::Admin => "an admin",
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::identity::PeerIdentity;

    #[test]
    fn a_token_lets_in_processes_of_one_role_and_only_so_many() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::begin(&dir.path().join("job"), "resnet").unwrap();
        let path = authority.dir.clone().unwrap();
        let join = authority.join_string("a:1");
        let request = {
            let key = KeyPair::generate().unwrap();
            CertificateParams::default().serialize_request(&key).unwrap().der().to_vec()
        };
        let come = |secret: [u8; 16], role| authority.admit(&request, role, "n1", |known| *known == secret, None);
        let hour = Duration::from_secs(3600);
        let token = Authority::invite(&path, "resnet", &join, Role::Worker, 2, hour).unwrap();
        assert!(token.secret != join.secret && token.ca_hash == join.ca_hash);
        let problem = |outcome: Result<CertificateDer<'static>>| match outcome {
            Err(Error::Auth { problem, .. }) => problem,
            other => panic!("{other:?}"),
        };
        let fault = |outcome: Result<CertificateDer<'static>>| match outcome {
            Err(Error::Token { problem, .. }) => problem,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(come(token.secret, Role::Server)), "is for a worker, not for a server");
        for _ in 0..3 {
            assert_eq!(PeerIdentity::of(&come(token.secret, Role::Observer).unwrap()).unwrap().role, Role::Observer);
        }
        for _ in 0..2 {
            assert_eq!(PeerIdentity::of(&come(token.secret, Role::Worker).unwrap()).unwrap().role, Role::Worker);
        }
        assert!(fault(come(token.secret, Role::Worker)).contains("is used up"));
        assert!(problem(come([7; 16], Role::Worker)).contains("is not that of job resnet"));
        assert!(come(join.secret, Role::Server).is_ok(), "the job's own secret is good for both");

        // Nobody gives orders by what lets members in, and nobody is a member by what lets give orders.
        assert!(problem(come(join.secret, Role::Admin)).contains("needs an admin token"));
        let admin = Authority::invite(&path, "resnet", &join, Role::Admin, 1, hour).unwrap();
        assert_eq!(fault(come(admin.secret, Role::Worker)), "is for an admin, not for a worker");
        assert_eq!(PeerIdentity::of(&come(admin.secret, Role::Admin).unwrap()).unwrap().role, Role::Admin);
        assert!(fault(come(admin.secret, Role::Admin)).contains("is used up"));
        let operators = authority.operators_string("a:1");
        assert_eq!(fault(come(operators.secret, Role::Server)), "is for an admin, not for a server");
        for _ in 0..2 {
            assert_eq!(PeerIdentity::of(&come(operators.secret, Role::Admin).unwrap()).unwrap().role, Role::Admin);
        }

        let other = Authority::create("resnet").unwrap().join_string("a:1");
        let error = Authority::invite(&path, "resnet", &other, Role::Worker, 1, hour).unwrap_err();
        assert!(matches!(error, Error::FailedPrecondition { .. }), "{error}");
    }
}
