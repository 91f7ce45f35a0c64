//! What is in the dump of one member. A dump may come from anywhere, so everything in it is checked.

use gradlane_core::runtime::recording::FORM;
use serde_json::Value;

use super::coordinator::Coordinator;
use super::fields::text_of;
use super::head::Head;
use super::server::Server;
use super::worker::Worker;

/// A file of a directory with dumps: what it says, or why it cannot be used.
pub(super) struct Found {
    /// Its name, for people.
    pub(super) file: String,
    pub(super) content: Result<Dump, String>,
}

/// The dump of one member.
#[derive(Clone, Debug)]
pub(super) struct Dump {
    pub(super) head: Head,
    pub(super) of: Of,
}

/// What is in it beside the head, by whose it is.
#[derive(Clone, Debug)]
pub(super) enum Of {
    Worker(Worker),
    Server(Server),
    Coordinator(Coordinator),
}

impl Dump {
    /// The dump in a file.
    ///
    /// # Errors
    /// Why it is none that this version can read.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => "it is cut off: copy it again, or have it written again".to_owned(),
            false => format!("it is no dump: {error}"),
        })?;
        let Value::Object(value) = value else { return Err("it is no dump: it has no fields".to_owned()) };
        let (form, version) = (text_of(&value, "form")?, text_of(&value, "version").unwrap_or_default());
        if form != FORM {
            return Err(format!(
                "it is a dump of the form {form}, and this is {FORM}: read it with Gradlane {version}"
            ));
        }
        let head = Head::of(&value)?;
        let of = match text_of(&value, "role")?.as_str() {
            "worker" => Of::Worker(Worker::of(&value)?),
            "server" => Of::Server(Server::of(&value)?),
            "coordinator" => Of::Coordinator(Coordinator::of(&value)?),
            role => return Err(format!("its role is {role}, which this version does not know")),
        };
        Ok(Self { head, of })
    }
}
