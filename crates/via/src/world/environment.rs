//! Finds the launcher that started this process, from its environment.

use std::ffi::{OsStr, OsString};

use super::{
    RANK_VARIABLE, RENDEZVOUS_VARIABLE, Rank, SIZE_VARIABLE, WorldError,
    tcp::{SCHEME, TcpRendezvous, find_secret},
};

/// Names the descriptor on which a launcher speaks PMI-1.
pub(super) const PMI_FD: &str = "PMI_FD";
const PMI_RANK: &str = "PMI_RANK";
const PMI_SIZE: &str = "PMI_SIZE";

const NO_RENDEZVOUS: &str = "there is no `VIGIE_RENDEZVOUS`, at which ranks meet";

/// Launchers that pass the number of ranks, but in a protocol that is not supported here.
const FOREIGN: [(&str, &str); 4] = [
    (SIZE_VARIABLE, NO_RENDEZVOUS),
    ("SLURM_STEP_NUM_TASKS", "srun was not told to bring them together: take `srun --mpi=pmi2`"),
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's launcher speaks PMIx, which is not spoken here"),
    (PMI_SIZE, "there is no `PMI_FD` on which to speak with their launcher"),
];

/// The launcher that started this process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    /// No launcher: the process runs alone.
    None,
    /// A launcher of vigie's own, at the other end of a descriptor.
    Inherited { descriptor: OsString },
    /// A rendezvous over TCP.
    Tcp(TcpRendezvous),
    /// A launcher that speaks PMI-1.
    Pmi { descriptor: OsString, rank: Rank, size: u32 },
}

/// Finds the launcher in the variables that `variable` returns. Vigie's own takes precedence, since another
/// launcher may have started it.
pub(super) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Launcher, WorldError> {
    if let Some(value) = variable(RENDEZVOUS_VARIABLE) {
        let Some(address) = value.to_str().and_then(|text| text.strip_prefix(SCHEME)) else {
            return Ok(Launcher::Inherited { descriptor: value });
        };
        let bad = |_| WorldError::Environment {
            variable: RENDEZVOUS_VARIABLE,
            problem: format!(
                "`{address}` is not an address with a port, as in {SCHEME}192.0.2.1:7000 (host names \
                 are not resolved: ask `getent hosts`)"
            ),
        };
        let address = address.parse().map_err(bad)?;
        let (rank, size) = place(&variable, RANK_VARIABLE, SIZE_VARIABLE)?;
        return Ok(Launcher::Tcp(TcpRendezvous {
            address,
            rank,
            size,
            secret: find_secret(&variable)?,
        }));
    }

    if let Some(descriptor) = variable(PMI_FD) {
        let (rank, size) = place(&variable, PMI_RANK, PMI_SIZE)?;
        return Ok(Launcher::Pmi { descriptor, rank, size });
    }

    // Ranks that do not know of each other would each act as the whole world.
    for (name, problem) in FOREIGN {
        let Some(value) = variable(name) else { continue };
        if value != "1" {
            let problem = format!("it tells of {} ranks, but {problem}", value.display());
            return Err(WorldError::Environment { variable: name, problem });
        }
    }
    if let Some(rank) = variable(RANK_VARIABLE).filter(|rank| rank != "0") {
        let problem = format!("it is rank {}, but {NO_RENDEZVOUS}", rank.display());
        return Err(WorldError::Environment { variable: RANK_VARIABLE, problem });
    }
    Ok(Launcher::None)
}

/// Reads which rank this process is, of how many.
fn place(
    variable: impl Fn(&str) -> Option<OsString>,
    rank_name: &'static str,
    size_name: &'static str,
) -> Result<(Rank, u32), WorldError> {
    let rank = number(rank_name, variable(rank_name).as_deref())?;
    let size = number(size_name, variable(size_name).as_deref())?;
    if rank >= size {
        let problem = format!("there is no rank {rank} among {size}");
        return Err(WorldError::Environment { variable: rank_name, problem });
    }
    Ok((Rank(rank), size))
}

/// Reads a required variable.
fn number(variable: &'static str, value: Option<&OsStr>) -> Result<u32, WorldError> {
    let bad = |problem| WorldError::Environment { variable, problem };
    let value =
        value.ok_or_else(|| bad("it is not set, though others of its launcher are".into()))?;
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| bad(format!("`{}` is not a number", value.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::tcp::parse_secret;

    fn found(variables: &[(&str, &str)]) -> Result<Launcher, WorldError> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        find(|name| value(name).map(|(_, value)| value.into()))
    }

    const TCP: [(&str, &str); 3] =
        [("VIGIE_RENDEZVOUS", "tcp://1.2.3.4:1"), ("VIGIE_RANK", "1"), ("VIGIE_SIZE", "2")];

    /// Goal: each launcher is found by what it sets, the nearest first. Method: their environments.
    #[test]
    fn each_launcher_is_found() {
        let pmi = [("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let expected = Launcher::Pmi { descriptor: "7".into(), rank: Rank(1), size: 2 };
        assert_eq!(found(&pmi).unwrap(), expected);
        let both = [&pmi[..], &[("VIGIE_RENDEZVOUS", "5")]].concat();
        let expected = Launcher::Inherited { descriptor: "5".into() };
        assert_eq!(found(&both).unwrap(), expected);
        let secret = "00112233445566778899aabbccddeeff";
        let tcp = [&TCP[..], &[("VIGIE_SECRET", secret)], &pmi].concat();
        let Launcher::Tcp(place) = found(&tcp).unwrap() else { panic!("another launcher") };
        assert_eq!((place.address, place.rank), ("1.2.3.4:1".parse().unwrap(), Rank(1)));
        assert!(place.secret == parse_secret(&format!(" {secret}\n")).unwrap());
        assert_eq!(found(&[]).unwrap(), Launcher::None);
        // One task needs no launcher.
        assert_eq!(found(&[("SLURM_STEP_NUM_TASKS", "1")]).unwrap(), Launcher::None);
    }

    /// Goal: an incomplete environment is an error that names the variable, and not a world of one. Method:
    /// what is missing, or nonsense, in each place.
    #[test]
    fn half_an_environment() {
        for (variables, named) in [
            (&[("PMI_FD", "7")][..], "PMI_RANK"),
            (&[("PMI_FD", "7"), ("PMI_RANK", "0")], "PMI_SIZE"),
            (&[("PMI_FD", "7"), ("PMI_RANK", "-1"), ("PMI_SIZE", "2")], "PMI_RANK"),
            (&[("PMI_FD", "7"), ("PMI_RANK", "0"), ("PMI_SIZE", "two")], "PMI_SIZE"),
            (&[("PMI_FD", "7"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")], "PMI_RANK"),
            (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI_SIZE"),
            (&[("VIGIE_RENDEZVOUS", "tcp://there")], "VIGIE_RENDEZVOUS"),
            (&[("VIGIE_RENDEZVOUS", "tcp://host:1")], "VIGIE_RENDEZVOUS"),
            (&[("VIGIE_RENDEZVOUS", "tcp://1.2.3.4:1")], "VIGIE_RANK"),
            (&[("VIGIE_RENDEZVOUS", "tcp://[::1]:1"), ("VIGIE_RANK", "1")], "VIGIE_SIZE"),
            (&TCP, "VIGIE_SECRET_FILE"),
            (&[&TCP[..], &[("VIGIE_SECRET", "short")]].concat(), "VIGIE_SECRET"),
            (&[&TCP[..], &[("VIGIE_SECRET_FILE", "/none")]].concat(), "VIGIE_SECRET_FILE"),
            (&[&TCP[..], &[("VIGIE_SECRET_FILE", "/dev/null")]].concat(), "VIGIE_SECRET_FILE"),
            (&[("VIGIE_RANK", "1"), ("VIGIE_SIZE", "2")], "VIGIE_SIZE"),
            (&[("VIGIE_RANK", "1")], "VIGIE_RANK"),
            (&[("SLURM_STEP_NUM_TASKS", "4")], "SLURM_STEP_NUM_TASKS"),
            (&[("OMPI_COMM_WORLD_SIZE", "4")], "OMPI_COMM_WORLD_SIZE"),
        ] {
            match found(variables) {
                Err(WorldError::Environment { variable, .. }) => assert_eq!(variable, named),
                other => panic!("{variables:?}: {other:?}"),
            }
        }
    }
}
