use super::*;

#[test]
fn each_launcher_is_understood() {
    // Rank, size, local rank, local size, host, hosts.
    for (variables, launcher, place) in [
        ("", Launcher::Single, [0, 1, 0, 1, 0, 1]),
        ("GRADLANE_RANK=1 GRADLANE_SIZE=2", Launcher::Gradlane, [1, 2, 0, 1, 1, 2]),
        (
            "GRADLANE_RANK=5 GRADLANE_SIZE=8 GRADLANE_LOCAL_RANK=1 GRADLANE_LOCAL_SIZE=4",
            Launcher::Gradlane,
            [5, 8, 1, 4, 1, 2],
        ),
        (
            "GRADLANE_RANK=2 GRADLANE_SIZE=3 GRADLANE_NODE_RANK=1 GRADLANE_NUM_NODES=2 GRADLANE_LOCAL_RANK=0 GRADLANE_LOCAL_SIZE=1",
            Launcher::Gradlane,
            [2, 3, 0, 1, 1, 2],
        ),
        ("DMLC_ROLE=worker DMLC_WORKER_ID=1 DMLC_NUM_WORKER=2", Launcher::Dmlc, [1, 2, 0, 1, 1, 2]),
        (
            "DMLC_WORKER_ID=1 DMLC_NUM_WORKER=2 BYTEPS_LOCAL_RANK=3 BYTEPS_LOCAL_SIZE=8",
            Launcher::Dmlc,
            [11, 16, 3, 8, 1, 2],
        ),
        (
            "DMLC_WORKER_ID=1 DMLC_NUM_WORKER=2 BYTEPS_LOCAL_RANK=3 BYTEPS_LOCAL_SIZE=8 BYTEPS_GLOBAL_RANK=4",
            Launcher::Dmlc,
            [4, 16, 3, 8, 1, 2],
        ),
        (
            "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=n1",
            Launcher::Torchrun,
            [3, 4, 1, 2, 1, 2],
        ),
        ("RANK=3 WORLD_SIZE=4", Launcher::Torchrun, [3, 4, 0, 1, 3, 4]),
        (
            r#"TF_CONFIG={"cluster":{"worker":["a:1","a:2","b:1"]},"task":{"type":"worker","index":1}}"#,
            Launcher::TfConfig,
            [1, 3, 1, 2, 0, 2],
        ),
        (
            "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            Launcher::Mpi,
            [3, 4, 1, 2, 1, 2],
        ),
        ("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", Launcher::Mpi, [3, 4, 1, 2, 1, 2]),
        (
            "SLURM_PROCID=9 SLURM_NTASKS=11 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_NODELIST=n[1-3] SLURM_TASKS_PER_NODE=4(x2),3",
            Launcher::Slurm,
            [9, 11, 1, 3, 2, 3],
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2] \
             SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=4(x2)",
            Launcher::Slurm,
            [1, 2, 0, 1, 1, 2],
        ),
    ] {
        let launch = detect(variables).unwrap();
        assert_eq!(launch.launcher, launcher, "{variables}");
        assert_eq!(launch.values().map(|(_, value)| value), place, "{variables}");
    }
}

#[test]
fn the_first_family_decides() {
    let families = [
        ("GRADLANE_RANK=0 GRADLANE_SIZE=2", Launcher::Gradlane),
        ("DMLC_WORKER_ID=0 DMLC_NUM_WORKER=3", Launcher::Dmlc),
        ("RANK=0 WORLD_SIZE=4", Launcher::Torchrun),
        (r#"TF_CONFIG={"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}}"#, Launcher::TfConfig),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=5", Launcher::Mpi),
        ("SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_STEP_NODELIST=n1", Launcher::Slurm),
    ];
    for first in 0..families.len() - 1 {
        let variables: Vec<&str> = families[first..].iter().map(|(variables, _)| *variables).collect();
        assert_eq!(detect(&variables.join(" ")).unwrap().launcher, families[first].1);
    }
}

#[test]
fn a_family_that_is_there_in_part_names_what_is_missing() {
    for (variables, missing) in [
        ("GRADLANE_RANK=1", "GRADLANE_SIZE"),
        ("GRADLANE_SIZE=1", "GRADLANE_RANK"),
        ("GRADLANE_RANK=0 GRADLANE_SIZE=2 GRADLANE_LOCAL_RANK=0", "GRADLANE_LOCAL_SIZE"),
        ("DMLC_ROLE=worker", "DMLC_WORKER_ID"),
        ("DMLC_WORKER_ID=0", "DMLC_NUM_WORKER"),
        ("DMLC_WORKER_ID=0 DMLC_NUM_WORKER=1 BYTEPS_LOCAL_SIZE=8", "BYTEPS_LOCAL_RANK"),
        ("RANK=0", "WORLD_SIZE"),
        ("WORLD_SIZE=2", "RANK"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK=0", "PMI_SIZE"),
        ("SLURM_PROCID=0 SLURM_STEP_NODELIST=n1", "SLURM_NTASKS"),
        ("SLURM_PROCID=0 SLURM_STEP_NODELIST=n1 SLURM_NTASKS=2 SLURM_NODEID=0", "SLURM_TASKS_PER_NODE"),
    ] {
        let Err(Error::Config { knob, problem, .. }) = detect(variables) else { panic!("{variables}") };
        assert_eq!(knob, missing, "{variables}");
        assert!(problem.starts_with("is missing"), "{problem}");
    }
}

#[test]
fn what_is_no_number_or_beyond_its_count_is_refused() {
    for (variables, problem) in [
        ("RANK=x WORLD_SIZE=2", "setting RANK: \"x\" is no number"),
        ("RANK=2 WORLD_SIZE=2", "rank of torchrun: is 2 of 2"),
        ("RANK=0 WORLD_SIZE=0", "rank of torchrun: is 0 of 0"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=0", "local rank of torchrun"),
        ("DMLC_WORKER_ID=2 DMLC_NUM_WORKER=2", "is 2 of 2"),
        ("DMLC_WORKER_ID=0 DMLC_NUM_WORKER=4294967295 BYTEPS_LOCAL_RANK=0 BYTEPS_LOCAL_SIZE=2", "more workers"),
    ] {
        let error = detect(variables).unwrap_err().to_string();
        assert!(error.contains(problem), "{variables}: {error}");
    }
}

#[test]
fn the_script_of_a_batch_job_is_a_single_process() {
    let launch = detect("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0").unwrap();
    assert_eq!(launch.launcher, Launcher::Single);
}

#[test]
fn a_coordinator_of_byteps_learns_the_number_of_workers() {
    assert_eq!(workers_of_dmlc(&environment("DMLC_NUM_WORKER=2")), Ok(Some(2)));
    assert_eq!(workers_of_dmlc(&environment("DMLC_NUM_WORKER=2 BYTEPS_LOCAL_SIZE=8")), Ok(Some(16)));
    assert_eq!(workers_of_dmlc(&environment("")), Ok(None));
}

fn detect(variables: &str) -> Result<Launch> {
    Launch::detect(&environment(variables))
}

/// An environment written as `NAME=value NAME=value`.
fn environment(variables: &str) -> impl Fn(&str) -> Option<String> + '_ {
    move |name| {
        variables
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value.to_owned())
    }
}
