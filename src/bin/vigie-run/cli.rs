//! The command line.

use std::{
    env,
    ffi::{OsStr, OsString},
    net::SocketAddr,
    ops::Range,
    path::PathBuf,
    time::Duration,
};

use clap::{CommandFactory, Parser, ValueEnum, error::ErrorKind, value_parser};
use vigie::via::world::{
    RANK_VARIABLE, RENDEZVOUS_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE, SIZE_VARIABLE,
};

/// The maximum number of ranks of one job.
pub(crate) const RANKS_MAX: u32 = 1024;

/// Starts N processes (ranks) of a program and ends them together: all of them on this host, or this host's share of
/// ranks that meet over TCP.
#[derive(Debug, Parser)]
#[command(name = "vigie-run", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Number of ranks of the job, on all hosts together: 1 to 1024. As the first argument, `-np N` is the same.
    #[arg(short = 'n', long = "ranks", value_name = "N", allow_negative_numbers = true,
          value_parser = value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    pub(crate) ranks: u32,

    /// When a rank fails, let the others continue and notify them. Default: end all ranks.
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// End the job after this many seconds, with exit code 124; fractions are allowed. Default: no limit.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Seconds between SIGTERM and SIGKILL when the launcher ends ranks; fractions are allowed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    pub(crate) timeout_end: Duration,

    /// Prefix each line of output with its rank: `[3] `. This is the default.
    #[arg(long, conflicts_with = "no_prefix")]
    tag_output: bool,

    /// Let the ranks write directly to the launcher's standard output and error, without prefixes.
    #[arg(long)]
    pub(crate) no_prefix: bool,

    /// Processors on which each rank may run.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = BindTo::None)]
    pub(crate) bind_to: BindTo,

    /// Set an environment variable for the ranks, other than those of the launcher; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// Serve the rendezvous, where ranks of all hosts meet, over TCP at this address. Without a program, start no
    /// ranks here. Port 0 takes any free port, which is written to standard error.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address, help_heading = "Many hosts")]
    pub(crate) listen: Option<SocketAddr>,

    /// Let the ranks meet at the rendezvous of another `vigie-run --listen`.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = address,
        conflicts_with = "listen",
        help_heading = "Many hosts"
    )]
    pub(crate) meet: Option<SocketAddr>,

    /// The ranks to start on this host, counted from 0: `4`, or `4-7`. Default: all.
    #[arg(long, value_name = "RANKS", value_parser = ranks, help_heading = "Many hosts")]
    here: Option<(u32, u32)>,

    /// The file with the secret that all hosts share: 32 hexadecimal digits. Default: the environment variable
    /// VIGIE_SECRET, or the file that VIGIE_SECRET_FILE names.
    #[arg(long, value_name = "PATH", help_heading = "Many hosts")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Seconds that ranks may take to arrive at the rendezvous, from its start.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60", requires = "listen",
          help_heading = "Many hosts")]
    pub(crate) arrival: Duration,

    /// The program (looked up in PATH if its name has no slash) and its arguments.
    #[arg(required_unless_present = "listen", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Cli {
    /// Parses and checks the arguments of this process, or exits with an error.
    pub(crate) fn from_process() -> Self {
        let cli = Self::parse_from(with_mpi_spelling(env::args_os()));
        if let Err(error) = cli.check() {
            error.exit();
        }
        cli
    }

    /// Checks combinations of arguments.
    fn check(&self) -> Result<(), clap::Error> {
        let bad = |what: String| Err(Self::command().error(ErrorKind::ValueValidation, what));
        if self.here().end > self.ranks {
            return bad(format!("--here: ranks are 0 to {}", self.ranks - 1));
        }
        if self.here.is_some() && !self.has_tcp() {
            return bad(
                "--here needs a way to meet the other ranks: add --listen or --meet".to_owned()
            );
        }
        if self.secret_file.is_some() && !self.has_tcp() {
            return bad("--secret-file is for --listen and --meet".to_owned());
        }
        Ok(())
    }

    /// The ranks to start here.
    pub(crate) fn here(&self) -> Range<u32> {
        match self.here {
            _ if self.command.is_empty() => 0..0,
            Some((first, last)) => first..last.saturating_add(1),
            None => 0..self.ranks,
        }
    }

    /// Returns whether the ranks meet over TCP.
    pub(crate) const fn has_tcp(&self) -> bool {
        self.listen.is_some() || self.meet.is_some()
    }

    /// The program and its arguments.
    pub(crate) fn program_and_arguments(&self) -> (&OsStr, &[OsString]) {
        match self.command.split_first() {
            Some((program, arguments)) => (program, arguments),
            // clap has checked that there is one.
            None => (OsStr::new(""), &[]),
        }
    }
}

/// The processors on which ranks may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BindTo {
    /// Any that the launcher may use.
    None,
    /// One processor for each rank, in turn over those that the launcher may use; a message says if ranks share a processor.
    Core,
}

/// Reads `vigie-run -np 4 PROGRAM`, as users of MPI write it, as `-n 4`.
fn with_mpi_spelling(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let is_mpi = |at: usize, argument: &OsStr| at == 1 && argument == "-np";
    arguments
        .enumerate()
        .map(move |(at, argument)| if is_mpi(at, &argument) { "-n".into() } else { argument })
}

const AFTER_HELP: &str = "\
Environment of the ranks:
  VIGIE_RANK, VIGIE_SIZE   the rank and the number of ranks, for scripts
  VIGIE_RENDEZVOUS         where vigie's `World` joins: the number of an inherited descriptor, or
                           tcp://ADDRESS:PORT
  VIGIE_SECRET, VIGIE_SECRET_FILE
                           the secret of a rendezvous over TCP, or the file that contains it

Several hosts: run `vigie-run -n 4 --listen 192.0.2.1:7000 --secret-file S --here 0-1 PROGRAM` on one host, and \
`vigie-run -n 4 --meet 192.0.2.1:7000 --secret-file S --here 2-3 PROGRAM` on the other. Ranks that another program \
starts join in the same way if they have the variables above. If ranks do not arrive within --arrival, the others \
are told which ones and end; with --keep-going they continue. When a rank is lost, the ranks of other hosts continue \
and are notified.

Input and output: rank 0 reads the launcher's standard input, the other ranks have none. Each line of output is \
passed on whole, with its rank in front; a last line without a line end gets one, and a line of more than 64 KiB is \
cut. With --no-prefix, output is not changed.

End of the job: when a rank fails, the others get SIGTERM, and SIGKILL after --timeout-end; with --keep-going they \
continue. Each rank has a process group of its own, which gets every signal and is killed when the rank has ended. \
Ranks do not outlive the launcher, even if the launcher is killed.

Signals: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on to the ranks. A \
second SIGINT or SIGTERM kills the ranks.

Exit code:
  0           all ranks ended with 0
  1           output could not be written, or ranks at --listen were lost or never joined
  2           the command line is wrong, or this host does not allow so large a job
  124         the job took longer than --timeout
  126, 127    the program cannot be run; the program does not exist
  N           exit code of the first rank that failed; 128 + S if signal S ended it";

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "must be an address with a port, as in 192.0.2.1:7000 (host names are not resolved: ask \
         `getent hosts`)"
            .to_owned()
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= 1e9 => Ok(duration),
        _ => Err("must be 0 to 1000000000 seconds".to_owned()),
    }
}

fn ranks(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("must be a rank, or the first and the last of several: 4-7".to_owned()),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key @ (RANK_VARIABLE | SIZE_VARIABLE | RENDEZVOUS_VARIABLE), _)) => {
            Err(format!("vigie-run sets {key} for each rank: choose another name"))
        }
        Some((SECRET_VARIABLE | SECRET_FILE_VARIABLE, _)) => {
            Err("the ranks get the secret by --secret-file, or from the environment of vigie-run"
                .to_owned())
        }
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the definition of the command line is valid. Method: clap's own check.
    #[test]
    fn definition() {
        Cli::command().debug_assert();
    }

    /// Goal: arguments after the program belong to it, whatever they look like. Method: a command with the launcher's
    /// own flags after the program.
    #[test]
    fn the_programs_arguments() {
        let cli = Cli::try_parse_from(["vigie-run", "-n", "2", "prog", "-n", "--help", "--", "x"]);
        let cli = cli.unwrap();
        let (program, arguments) = cli.program_and_arguments();
        assert_eq!((cli.ranks, program.to_str()), (2, Some("prog")));
        assert_eq!(arguments, ["-n", "--help", "--", "x"]);
    }

    /// Goal: the spelling of MPI launchers is understood, and a program may have it as an argument of its own. Method: both.
    #[test]
    fn mpi_spelling() {
        let arguments = ["vigie-run", "-np", "2", "prog", "-np", "3"].map(OsString::from);
        let cli = Cli::try_parse_from(with_mpi_spelling(arguments.into_iter())).unwrap();
        assert_eq!((cli.ranks, cli.program_and_arguments().1.len()), (2, 2));
        assert_eq!(cli.program_and_arguments().1[0], "-np");
    }

    /// Goal: combinations of arguments are checked. Method: valid and invalid ones.
    #[test]
    fn several_arguments() {
        let parse = |arguments: &[&str]| {
            let cli = Cli::try_parse_from(["vigie-run"].iter().chain(arguments)).unwrap();
            cli.check().map(|()| cli.here())
        };
        let meet = ["-n", "4", "--meet", "[::1]:1"];
        assert_eq!(parse(&[&meet[..], &["--here", "1-2", "x"]].concat()).unwrap(), 1..3);
        assert_eq!(parse(&[&meet[..], &["--here", "3", "x"]].concat()).unwrap(), 3..4);
        assert_eq!(parse(&["-n", "4", "--listen", "[::1]:1"]).unwrap(), 0..0);
        assert_eq!(parse(&["-n", "4", "x"]).unwrap(), 0..4);
        assert!(parse(&[&meet[..], &["--here", "3-4", "x"]].concat()).is_err());
        assert!(parse(&["-n", "4", "--here", "1", "x"]).is_err());
        assert!(parse(&["-n", "4", "--secret-file", "s", "x"]).is_err());
    }

    /// Goal: bad input is refused. Method: each kind of it.
    #[test]
    fn bad_input() {
        for (arguments, kind) in [
            (&["-n", "0", "x"][..], ErrorKind::ValueValidation),
            (&["-n", "1025", "x"], ErrorKind::ValueValidation),
            (&["-n", "-1", "x"], ErrorKind::ValueValidation),
            (&["-n", "two", "x"], ErrorKind::ValueValidation),
            (&["-n", "1"], ErrorKind::MissingRequiredArgument),
            (&["x"], ErrorKind::MissingRequiredArgument),
            (&["-n", "2", "--listen", "here", "x"], ErrorKind::ValueValidation),
            (&["-n", "2", "--meet", "localhost:7000", "x"], ErrorKind::ValueValidation),
            (&["-n", "2", "--listen", "[::1]:1", "--meet", "[::1]:1"], ErrorKind::ArgumentConflict),
            (&["-n", "2", "--meet", "[::1]:1"], ErrorKind::MissingRequiredArgument),
            (&["-n", "2", "--meet", "[::1]:1", "--here", "1-0", "x"], ErrorKind::ValueValidation),
            (&["-n", "2", "--arrival", "1", "x"], ErrorKind::MissingRequiredArgument),
            (&["-n", "1", "--env", "A", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "=A", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "VIGIE_RANK=7", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "VIGIE_SIZE=7", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "VIGIE_RENDEZVOUS=7", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "VIGIE_SECRET=7", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--env", "VIGIE_SECRET_FILE=7", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--timeout", "-1", "x"], ErrorKind::UnknownArgument),
            (&["-n", "1", "--timeout=nan", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--timeout=1e99", "x"], ErrorKind::ValueValidation),
            (&["-n", "1", "--bind-to", "moon", "x"], ErrorKind::InvalidValue),
            (&["-n", "1", "--tag-output", "--no-prefix", "x"], ErrorKind::ArgumentConflict),
        ] {
            let error = Cli::try_parse_from(["vigie-run"].iter().chain(arguments)).unwrap_err();
            assert_eq!(error.kind(), kind, "{arguments:?}: {error}");
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
        }
    }
}
