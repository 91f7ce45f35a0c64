//! The name of a job that the user gave none: from the number that the launcher gave it, so that two jobs of one user have two names.

use xxhash_rust::xxh3::xxh3_64;

use super::launcher::Launcher;

/// The name of the job of this process; `None` if nothing tells jobs apart. `launcher` is the one that placed this worker, if it is one.
/// `env` gives the value of a variable.
///
/// A worker that `srun` or MPI placed finds its coordinator in rank 0 of the same step. Other processes of a Slurm job may run in several
/// steps, such as one for servers and one for workers, so they share the name of the whole job.
pub(super) fn job_name(launcher: Option<Launcher>, env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let given = |name: &str| env(name).filter(|value| !value.is_empty());
    let slurm = || given("SLURM_JOB_ID");
    let step = || Some(format!("slurm_{}.{}", slurm()?, given("SLURM_STEP_ID")?));
    let named = match launcher {
        Some(Launcher::Dmlc | Launcher::TfConfig) => None,
        Some(Launcher::Slurm) => step(),
        Some(Launcher::Mpi) => {
            // PMIx names the namespace of a job; older releases of Open MPI have a number of their own for it.
            let space = given("PMIX_NAMESPACE").or_else(|| given("OMPI_MCA_ess_base_jobid"));
            space.map(|space| format!("mpi_{space}")).or_else(step)
        }
        // torchrun calls every run that the user gave no name "none".
        Some(Launcher::Torchrun) => {
            let run = given("TORCHELASTIC_RUN_ID").filter(|run| run != "none");
            run.map(|run| format!("torchrun_{run}")).or_else(|| Some(format!("slurm_{}", slurm()?)))
        }
        Some(Launcher::Gradlane | Launcher::Single) | None => slurm().map(|id| format!("slurm_{id}")),
    };
    named.map(|name| fitting(&name))
}

/// `name` in the characters and the length of a job's name. Names that differ stay different.
fn fitting(name: &str) -> String {
    const BYTES_MAX: usize = 64;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.len() <= BYTES_MAX && name.chars().all(is_plain) {
        return name.to_owned();
    }
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).take(BYTES_MAX - 17).collect();
    format!("{plain}_{:016x}", xxh3_64(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_tells_the_jobs_of_a_user_apart() {
        use Launcher::{Dmlc, Gradlane, Mpi, Single, Slurm, Torchrun};
        let in_slurm = "SLURM_JOB_ID=7 SLURM_STEP_ID=2";
        for (launcher, variables, name) in [
            (Some(Slurm), in_slurm, Some("slurm_7.2")),
            (Some(Mpi), "PMIX_NAMESPACE=4110483457", Some("mpi_4110483457")),
            (Some(Mpi), "OMPI_MCA_ess_base_jobid=12", Some("mpi_12")),
            (Some(Mpi), in_slurm, Some("slurm_7.2")),
            (Some(Mpi), "", None),
            (Some(Torchrun), "TORCHELASTIC_RUN_ID=night", Some("torchrun_night")),
            (Some(Torchrun), "TORCHELASTIC_RUN_ID=none", None),
            (Some(Torchrun), "TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=7", Some("slurm_7")),
            (Some(Gradlane), in_slurm, Some("slurm_7")),
            (None, in_slurm, Some("slurm_7")),
            (Some(Dmlc), in_slurm, None),
            (Some(Single), "", None),
        ] {
            let named = job_name(launcher, &environment(variables));
            assert_eq!(named.as_deref(), name, "{launcher:?} {variables}");
        }
    }

    #[test]
    fn a_name_fits_a_directory_and_stays_different() {
        let of =
            |space: &str| job_name(Some(Launcher::Mpi), &|name| (name == "PMIX_NAMESPACE").then(|| space.to_owned()));
        let [at, slash] = ["prterun-n1-77@1", "prterun-n1-77/1"].map(|space| of(space).unwrap());
        assert!(at.starts_with("mpi_prterun-n1-77_1_") && slash.starts_with("mpi_prterun-n1-77_1_"), "{at} {slash}");
        assert_ne!(at, slash);
        assert_eq!(of(&"x".repeat(500)).unwrap().len(), 64);
    }

    fn environment(variables: &str) -> impl Fn(&str) -> Option<String> + '_ {
        move |name| {
            let mut pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
        }
    }
}
