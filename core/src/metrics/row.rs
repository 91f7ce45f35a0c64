//! What a row of the table of metrics says, and the macro that makes counters, readers and rows of it.

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// What has this metric: `worker`, `server`, `coordinator` or `exporter`.
    pub scope: &'static str,
    /// The label that tells several of that scope apart, such as `rank`.
    pub label: &'static str,
    /// The labels that it has besides that one, such as `cause`.
    pub labels: &'static [&'static str],
    /// Its name in snapshots and in Python. It ends with the unit, if it has one.
    pub name: &'static str,
    /// How its value moves.
    pub kind: Kind,
    /// What its value counts.
    pub unit: Unit,
    /// What it means.
    pub help: &'static str,
}

/// How the value of a metric moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// It counts durations by their length.
    Histogram,
}

impl Kind {
    /// Its name, which is also that in Prometheus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What the value of a metric counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Events or things.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// Its name, in the plural; none for a plain count.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Count => None,
            Self::Bytes => Some("bytes"),
            Self::BytesPerSecond => Some("bytes_per_second"),
            Self::Nanoseconds => Some("nanoseconds"),
        }
    }
}

/// Makes a structure of counters and gauges for each scope, and [`METRICS`]. A row reads `name: Kind of Unit;`, below its documentation. A
/// counter that others hold too has `, shared` behind its unit. A gauge that follows from other values is computed:
/// `name: Gauge of Unit = |metrics| value;`. What has more than one number says its [`Cell`], and the labels that tell the numbers apart:
/// `name: Kind of Unit by "label" in Cell;`.
macro_rules! metrics {
    ($(
        $(#[doc = $scope_doc:literal])+
        $scope:literal by $label:literal: $set:ident {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $kind:ident of $unit:ident $(, $shared:ident)?;
            )+
        }
        computed {
            $(
                $(#[doc = $gauge_help:literal])+
                $gauge:ident: Gauge of $gauge_unit:ident = $value:expr;
            )*
        }
        cells {
            $(
                $(#[doc = $cell_help:literal])+
                $cell:ident: $cell_kind:ident of $cell_unit:ident $(by $($cell_label:literal)+)? in $type:ident;
            )*
        }
    )+) => {
        /// Every metric, by scope.
        pub const METRICS: &[Metric] = &[$(
            $(metrics!(@row $scope, $label, [], $name, $kind, $unit, $($help),+),)+
            $(metrics!(@row $scope, $label, [], $gauge, Gauge, $gauge_unit, $($gauge_help),+),)*
            $(metrics!(@row $scope, $label, [$($($cell_label),+)?], $cell, $cell_kind, $cell_unit, $($cell_help),+),)*
        )+];

        $(
            $(#[doc = $scope_doc])+
            #[derive(Default, Debug)]
            pub struct $set {$(
                $(#[doc = $help])+
                pub $name: metrics!(@cell $($shared)?),
            )+$(
                $(#[doc = $cell_help])+
                pub $cell: $type,
            )*}

            impl $set {
                /// Adds `by` to `counter`, one of the fields.
                pub fn add(counter: &AtomicU64, by: u64) {
                    counter.fetch_add(by, Ordering::Relaxed);
                }

                /// Sets `gauge`, one of the fields.
                pub fn set(gauge: &AtomicU64, value: u64) {
                    gauge.store(value, Ordering::Relaxed);
                }

                $(
                    $(#[doc = $help])+
                    pub fn $name(&self) -> u64 {
                        self.$name.load(Ordering::Relaxed)
                    }
                )+

                $(
                    $(#[doc = $gauge_help])+
                    pub fn $gauge(&self) -> u64 {
                        let value: fn(&Self) -> u64 = $value;
                        value(self)
                    }
                )*

                /// Every metric with its name, in the order of the table.
                pub fn snapshot(&self) -> Vec<(&'static str, Value)> {
                    vec![
                        $((stringify!($name), Value::Plain(self.$name())),)+
                        $((stringify!($gauge), Value::Plain(self.$gauge())),)*
                        $((stringify!($cell), self.$cell.value()),)*
                    ]
                }

                /// The values now, of the one that `label` names.
                pub fn instance(&self, label: impl Display) -> Instance {
                    Instance { scope: $scope, label: label.to_string(), further: Vec::new(), values: self.snapshot() }
                }
            }
        )+
    };
    (@row $scope:literal, $label:literal, [$($labels:literal),*], $name:ident, $kind:ident, $unit:ident, $($help:literal),+) => {
        Metric {
            scope: $scope,
            label: $label,
            labels: &[$($labels),*],
            name: stringify!($name),
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: concat!($($help),+).trim_ascii(),
        }
    };
    (@cell) => { AtomicU64 };
    (@cell shared) => { Arc<AtomicU64> };
}
pub(super) use metrics;
