//! The log of a process: sentences on a terminal, fields in a file or a pipe.

use std::fmt::{self, Debug, Write as _};
use std::io::IsTerminal;

use gradlane_core::config::Config;
use gradlane_core::config::units::print_bytes;
use gradlane_core::types::printable;
use gradlane_core::{Error, Result};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FmtSpan, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Starts the log of this process, on standard error, because standard output is for results. Keeps an existing log, such as that of a
/// test. Lines that cannot be written, as on a full disk, are lost.
///
/// # Errors
/// [`Error::Config`] if the setting `log` is no filter.
pub fn start(config: &Config) -> Result<()> {
    let filter = EnvFilter::try_new(&config.log).map_err(|cause| Error::Config {
        knob: "log".to_owned(),
        problem: no_filter(&config.log, &cause),
        hint: FILTERS.to_owned(),
    })?;
    // The end of a span, such as `submit`, is a line with the time that it took, if the filter lets it through.
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_span_events(FmtSpan::CLOSE);
    // Errors of the log would be reported by a macro that panics if standard error cannot be written.
    let log = log.with_ansi(false).log_internal_errors(false);
    // Fails if there is a log already.
    let _ = if std::io::stderr().is_terminal() {
        let log = log.event_format(Sentences).with_filter_reloading();
        let filter = log.reload_handle();
        log.finish().with(Filtered::new(move |next| filter.reload(next))).try_init()
    } else {
        let log = log.with_filter_reloading();
        let filter = log.reload_handle();
        log.finish().with(Filtered::new(move |next| filter.reload(next))).try_init()
    };
    Ok(())
}

/// An operator changes what the log of this process lets through, from now on.
///
/// # Errors
/// [`Error::InvalidArgument`] if `filter` is none; [`Error::FailedPrecondition`] if the log is not that of [`start`].
pub fn change(filter: &str) -> Result<()> {
    let next = EnvFilter::try_new(filter)
        .map_err(|cause| Error::InvalidArgument { what: no_filter(filter, &cause), hint: FILTERS.to_owned() })?;
    let changed =
        tracing::dispatcher::get_default(|log| log.downcast_ref::<Filtered>().map(|log| (log.change)(next.clone())));
    match changed {
        Some(Ok(())) => {
            tracing::info!(filter, "an operator has changed the log");
            Ok(())
        }
        Some(Err(_)) | None => Err(Error::FailedPrecondition {
            what: "the log of this process is not that of Gradlane".to_owned(),
            hint: "change it in the program itself".to_owned(),
        }),
    }
}

fn no_filter(text: &str, cause: &dyn fmt::Display) -> String {
    format!("{text:?} is no filter: {cause}")
}

const FILTERS: &str = "give a level such as info, or directives such as info,gradlane_core::sched=trace";

/// Finds the filter of the log again: a layer that does nothing else. The log itself is the process's only one, so that no static is needed
/// to reach it.
struct Filtered {
    change: Box<dyn Fn(EnvFilter) -> std::result::Result<(), tracing_subscriber::reload::Error> + Send + Sync>,
}

impl Filtered {
    fn new(
        change: impl Fn(EnvFilter) -> std::result::Result<(), tracing_subscriber::reload::Error> + Send + Sync + 'static,
    ) -> Self {
        Self { change: Box::new(change) }
    }
}

impl<S: Subscriber> Layer<S> for Filtered {}

/// Writes an event as a line for people, such as `gradlane: warning: a sum waits: tensor w, round 3, missing rank 1, waited 10.0 s`.
struct Sentences;

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "",
            Level::DEBUG => "debug: ",
            Level::TRACE => "trace: ",
        };
        write!(line, "gradlane: {level}")?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map_or("", |fields| fields.as_str());
            match fields.is_empty() {
                true => write!(line, "{}: ", span.name())?,
                false => write!(line, "{} ({fields}): ", span.name())?,
            }
        }
        writeln!(line, "{}", sentence.text())
    }
}

/// The parts of a sentence.
#[derive(Default)]
struct Sentence {
    message: String,
    /// Facts, such as `round 3`.
    facts: Vec<String>,
    /// Texts that are sentences themselves, such as an error.
    reasons: Vec<String>,
}

impl Sentence {
    /// Adds a value. Names and texts of others must not forge lines, nor control the terminal.
    fn add(&mut self, field: &str, value: String) {
        let value = printable(&value);
        match field {
            "message" => self.message = value,
            "error" | "cause" | "reason" | "detail" => self.reasons.push(value),
            // Nobody else is meant.
            "others" if value == "0" => {}
            "others" => self.facts.push(format!("and {value} others")),
            field => self.facts.push(format!("{} {value}", field.replace('_', " "))),
        }
    }

    fn text(self) -> String {
        let Self { message, facts, reasons } = self;
        let facts = if facts.is_empty() { message } else { format!("{message}: {}", facts.join(", ")) };
        std::iter::once(facts).chain(reasons).collect::<Vec<_>>().join("; ")
    }
}

impl Visit for Sentence {
    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name().strip_suffix("_s") {
            Some(name) => self.add(name, format!("{value:.1} s")),
            None => self.add(field.name(), format!("{value:.1}")),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            name if name.ends_with("bytes") || name.ends_with("bytes_max") => self.add(name, print_bytes(value)),
            name => match name.strip_suffix("_s") {
                Some(name) => self.add(name, format!("{value} s")),
                None => self.add(name, value.to_string()),
            },
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").expect("a string takes all");
        self.add(field.name(), text);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[test]
    fn people_read_sentences_without_names_of_types_and_targets() {
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).event_format(Sentences);
        let log = log.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let (tensor, missing) = ("fc.weight", "rank 1");
            tracing::warn!(
                tensor,
                round = 3_u64,
                missing,
                waited_s = 10.002,
                others = 0_usize,
                detail = "last seen",
                "a sum waits"
            );
            tracing::info!(booked_bytes = 20_u64 << 20, "memory");
            let error = Error::Cancelled;
            tracing::error!(%error, "it failed");
        });
        let expected = "gradlane: warning: a sum waits: tensor fc.weight, round 3, missing rank 1, waited 10.0 s; last seen\n\
                        gradlane: memory: booked bytes 20 MiB\n\
                        gradlane: error: it failed; cancelled by the caller\n";
        assert_eq!(written.text(), expected);
    }

    #[test]
    fn a_span_that_is_asked_for_is_told_with_what_it_took() {
        for (filter, expected) in [("warn", 0), ("trace", 2)] {
            let written = Written::default();
            let writer = written.clone();
            let log =
                tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter).with_span_events(FmtSpan::CLOSE);
            let log = log.event_format(Sentences).with_writer(move || writer.clone()).finish();
            tracing::subscriber::with_default(log, || {
                let _span = tracing::trace_span!("submit", tensor = "fc.weight", bytes = 40).entered();
                tracing::trace!("declared");
            });
            let text = written.text();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), expected, "{text}");
            let start = "gradlane: trace: submit (tensor=\"fc.weight\" bytes=40): ";
            assert!(lines.iter().all(|line| line.starts_with(start)), "{text}");
            assert!(lines.last().is_none_or(|last| last.contains("close: time.busy ")), "{text}");
        }
    }

    #[test]
    fn a_name_neither_forges_a_line_nor_controls_the_terminal() {
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).event_format(Sentences);
        let log = log.with_writer(move || writer.clone()).finish();
        let name = "w\u{1b}[2J\ngradlane: all is well";
        let error = Error::Internal { what: name.to_owned() };
        tracing::subscriber::with_default(log, || tracing::warn!(tensor = name, shown = %name, %error, "a sum waits"));
        let text = written.text();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.trim_end().contains(char::is_control), "{text:?}");
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).expect("text")
        }
    }

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
