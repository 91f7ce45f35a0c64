//! What people, launchers and coordinators write: join strings, tokens, terms, journals, rendezvous files, settings.

use std::collections::BTreeMap;

use gradlane_core::config::load::File;
use gradlane_core::config::{Config, KNOBS, Knob, ProcessRole, fuzzing as config};
use gradlane_core::error::Error;
use gradlane_core::identity::fuzzing as identity;
use gradlane_core::types::join::JoinString;
use gradlane_server::fuzzing as server;

use super::input::Input;
use super::{Kind, Memory, Target};

pub(super) const JOIN_STRING: Target = Target {
    name: "join_string",
    kind: Kind::Decoder,
    check: join_string,
    seeds: || vec![join().to_string().into_bytes()],
    memory: Memory { bytes: 8 << 10, times: 16 },
};

pub(super) const INVITATION: Target = Target {
    name: "invitation",
    kind: Kind::Decoder,
    check: identity::invitation,
    seeds: || vec![format!("gradlane-token-1 server 3 99 {}\n", "07".repeat(16)).into_bytes()],
    memory: Memory { bytes: 4 << 10, times: 4 },
};

pub(super) const TERM: Target = Target {
    name: "term",
    kind: Kind::Decoder,
    check: server::term,
    seeds: || [&b"3\n"[..], b"4294967294\n"].map(<[u8]>::to_vec).into(),
    memory: Memory { bytes: 4 << 10, times: 4 },
};

pub(super) const JOURNAL: Target = Target {
    name: "journal",
    kind: Kind::Decoder,
    check: server::journal,
    seeds: || vec![server::a_journal()],
    // A tensor of as many parts as a job may have.
    memory: Memory { bytes: 256 << 20, times: 64 << 10 },
};

pub(super) const RENDEZVOUS: Target = Target {
    name: "rendezvous",
    kind: Kind::Decoder,
    check: server::rendezvous,
    seeds: || vec![server::a_rendezvous(&join())],
    memory: Memory { bytes: 8 << 10, times: 16 },
};

pub(super) const SETTING: Target = Target {
    name: "setting",
    kind: Kind::Decoder,
    check: setting,
    seeds: setting_seeds,
    memory: Memory { bytes: 64 << 10, times: 64 },
};

pub(super) const SETTINGS: Target = Target {
    name: "settings",
    kind: Kind::Machine,
    check: settings,
    seeds: settings_seeds,
    memory: Memory { bytes: 1 << 20, times: 4096 },
};

pub(super) const TF_CONFIG: Target = Target {
    name: "tf_config",
    kind: Kind::Decoder,
    check: tf_config,
    seeds: || {
        let cluster = r#"{"chief": ["n0:1"], "worker": {"3": "n1:1"}, "ps": ["n3:1"]}"#;
        let task = |kind| format!(r#"{{"cluster": {cluster}, "task": {{"type": "{kind}", "index": 0}}}}"#);
        ["chief", "ps", "evaluator"].map(|kind| task(kind).into_bytes()).into()
    },
    memory: Memory { bytes: 1 << 20, times: 1024 },
};

pub(super) const CLUSTER_FILE: Target = Target {
    name: "cluster_file",
    kind: Kind::Decoder,
    check: cluster_file,
    seeds: || {
        let text = "[cluster]\ncoordinator = \"n0:7\"\n[cluster.server]\n0 = \"n1:7\"\n[cluster.worker]\n0 = \"n2\"\n2 = \"n3\"\n";
        [[0, 1], [0, 3], [1, 1], [2, 0], [3, 0]].map(|chosen| [&chosen[..], text.as_bytes()].concat()).into()
    },
    memory: Memory { bytes: 1 << 20, times: 4096 },
};

/// What is parsed is printed as what is parsed again, and no message holds the secret.
fn join_string(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<JoinString>() {
        Ok(join) => {
            assert_eq!(join.to_string().parse(), Ok(join.clone()));
            let secret = join.to_string();
            let secret = secret.rsplit('.').next().expect("it has parts");
            let is_hidden = |shown: String| !shown.rsplit('.').next().expect("it has parts").contains(secret);
            assert!(is_hidden(join.masked()) && is_hidden(format!("{join:?}")));
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.len() < 400 + bytes.len().min(200), "a message stays short: {shown}");
            let last = text.trim().rsplit('.').next().unwrap_or_default();
            // What also stands elsewhere in the text, such as in its version, is no secret.
            let is_word = last.len() >= 20 && last.chars().all(|letter| letter.is_ascii_alphanumeric());
            let is_secret = is_word && text.matches(last).count() == 1;
            assert!(!is_secret || !shown.contains(last), "a message that shows the secret: {shown}");
        }
    }
}

/// The number of a setting, and its value.
fn setting(bytes: &[u8]) {
    let Some((&number, value)) = bytes.split_first() else { return };
    config::setting(&KNOBS[usize::from(number) % KNOBS.len()], &String::from_utf8_lossy(value));
}

/// Lines `NAME=value` of an environment, then, after a line `---`, the file. `%N=value` is the Nth setting.
fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // It would be opened.
    if text.to_ascii_lowercase().contains("cluster_file") {
        return;
    }
    let (lines, file) = text.split_once("\n---\n").map_or((&*text, None), |(lines, file)| (lines, Some(file)));
    let variables = KNOBS.iter().filter(|knob| knob.name != "cluster_file").flat_map(|knob| knob.variables());
    let variables: Vec<String> = variables.collect();
    let environment = lines.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let number = name.strip_prefix('%').and_then(|number| number.parse::<usize>().ok());
        let name = number.map_or_else(|| name.to_owned(), |number| variables[number % variables.len()].clone());
        Some((name, value.to_owned()))
    });
    let file = file.map(|text| File { path: "settings.toml".to_owned(), text: text.to_owned() });
    check_config(Config::load(&BTreeMap::new(), environment, file.as_ref()));
}

fn tf_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    // Loading all settings takes ten times as long.
    if config::tf_config(&text) {
        check_config(Config::load(&BTreeMap::new(), [("TF_CONFIG".to_owned(), text)], None));
    }
}

fn check_config(loaded: gradlane_core::Result<(Config, Vec<gradlane_core::config::Warning>)>) {
    match loaded {
        Ok((loaded, _warnings)) => config::values_read_back(&loaded),
        Err(Error::Config { knob, problem, hint }) => {
            assert!(!knob.is_empty() && !problem.is_empty() && !hint.is_empty(), "{knob}, {problem}, {hint}");
        }
        Err(error) => panic!("not about settings: {error}"),
    }
}

fn cluster_file(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let roles = [ProcessRole::Worker, ProcessRole::Server, ProcessRole::Coordinator, ProcessRole::Both];
    let (role, index) = (input.pick(&roles), input.byte());
    config::cluster_file(role, index.checked_sub(1).map(u32::from), &String::from_utf8_lossy(input.rest()));
}

/// Each setting at its default and at its limits.
fn setting_seeds() -> Vec<Vec<u8>> {
    let values =
        |knob: &Knob| [Some(knob.default), knob.range.map(|(least, _)| least), knob.range.map(|(_, most)| most)];
    let numbered = KNOBS.iter().enumerate();
    numbered
        .flat_map(|(number, knob)| values(knob).into_iter().flatten().map(move |value| (number, value)))
        .map(|(number, value)| [&[number as u8], value.as_bytes()].concat())
        .collect()
}

/// Each setting alone, at its default and beyond every limit, and a few at once.
fn settings_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        b"RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nTORCHELASTIC_RUN_ID=night".to_vec(),
        b"DMLC_ROLE=worker\nDMLC_WORKER_ID=1\nDMLC_NUM_WORKER=2\nDMLC_NUM_SERVER=1\nDMLC_PS_ROOT_URI=n0\nDMLC_PS_ROOT_PORT=9\nBYTEPS_LOCAL_RANK=0\nBYTEPS_LOCAL_SIZE=1".to_vec(),
        b"OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=1\nPMIX_NAMESPACE=7".to_vec(),
        b"SLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_LOCALID=1\nSLURM_STEP_NODELIST=n[1-2]\nSLURM_JOB_ID=5\nSLURM_STEP_ID=0".to_vec(),
        b"PMI_RANK=0\nPMI_SIZE=2\n---\npartition_bytes = 65536\nchecksum = true\n".to_vec(),
    ];
    for (number, knob) in KNOBS.iter().flat_map(|knob| knob.variables().map(move |_| knob)).enumerate() {
        let range = knob.range.map_or([knob.default; 2], |(least, most)| [least, most]);
        for value in [knob.default, range[0], range[1], "-1", "1e400 MiB", "18446744073709551616"] {
            seeds.push(format!("%{number}={value}").into_bytes());
        }
        seeds.push(format!("\n---\n{} = \"{}\"\n", knob.name, knob.default).into_bytes());
    }
    seeds
}

fn join() -> JoinString {
    JoinString {
        address: "n1.cluster.example:7000".to_owned(),
        ca_hash: std::array::from_fn(|index| index as u8),
        secret: std::array::from_fn(|index| 100 + index as u8),
    }
}
