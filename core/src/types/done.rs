//! The completion callback that all asynchronous operations use: `op(args, Done)`.

use std::fmt;

use crate::error::Error;

/// Reports the outcome of an operation exactly once.
///
/// Dropping it without a report *is* a report: the waiter gets [`Error::Internal`]. So a forgotten branch becomes an error on a handle,
/// never a hang. `F` is the failure type, if a failure says more than an error.
#[must_use = "dropping a Done reports an error to whoever waits for it"]
pub struct Done<T, F: From<Error> = Error>(Option<Report<T, F>>);

type Report<T, F> = Box<dyn FnOnce(Result<T, F>) + Send>;

impl<T, F: From<Error>> Done<T, F> {
    /// A token that passes the outcome to `report`, on the thread that completes the operation.
    pub fn new(report: impl FnOnce(Result<T, F>) + Send + 'static) -> Self {
        Self(Some(Box::new(report)))
    }

    /// Reports success.
    pub fn ok(self, value: T) {
        self.report(Ok(value));
    }

    /// Reports failure.
    pub fn err(self, error: Error) {
        self.report(Err(error.into()));
    }

    /// Reports `outcome`.
    pub fn report(mut self, outcome: Result<T, F>) {
        let report = self.0.take().expect("taken only here and in drop");
        report(outcome);
    }
}

impl<T, F: From<Error>> Drop for Done<T, F> {
    fn drop(&mut self) {
        if let Some(report) = self.0.take() {
            let error = Error::Internal { what: "an operation was dropped before it reported".to_owned() };
            report(Err(error.into()));
        }
    }
}

impl<T, F: From<Error>> fmt::Debug for Done<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn dropping_it_reports_an_error() {
        let (sender, receiver) = mpsc::channel();
        drop(Done::<()>::new(move |outcome| sender.send(outcome).unwrap()));
        assert!(matches!(receiver.recv().unwrap(), Err(Error::Internal { .. })));
        assert!(receiver.recv().is_err(), "reported once");
    }
}
