//! Names of algorithms, for command lines and tables.

use std::{fmt, str::FromStr, time::Duration};

use super::{Algorithm, AlgorithmError, HopTiming, Networks};

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ShuffleExchange => f.pad("shuffle-exchange"),
            Self::Pairwise => f.pad("pairwise"),
            Self::DISSEMINATION => f.pad("dissemination"),
            Self::Dissemination { ways } => f.pad(&format!("dissemination-{ways}")),
            Self::BINARY => f.pad("binary"),
            Self::Nomial { k } => f.pad(&format!("nomial-{k}")),
            Self::Heap { children: 2, networks } => f.pad(&format!("ternary{}", networks.suffix())),
            Self::Heap { children, networks } => {
                f.pad(&format!("heap-{children}{}", networks.suffix()))
            }
            Self::Concurrent { networks } => f.pad(&format!("concurrent{}", networks.suffix())),
            Self::Optimal(HopTiming { hop, gap }) => {
                f.pad(&format!("optimal-{}-{}", hop.as_nanos(), gap.as_nanos()))
            }
            Self::Tournament => f.pad("tournament"),
            Self::Central => f.pad("central"),
        }
    }
}

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    fn from_str(name: &str) -> Result<Self, AlgorithmError> {
        parse(name).ok_or_else(|| AlgorithmError::Unknown { name: name.to_owned() })
    }
}

fn parse(name: &str) -> Option<Algorithm> {
    let (base, networks) = match name.strip_suffix(Networks::Two.suffix()) {
        Some(base) => (base, Networks::Two),
        None => (name, Networks::One),
    };
    let two = match base {
        "ternary" => Some(Algorithm::Heap { children: 2, networks }),
        "concurrent" => Some(Algorithm::Concurrent { networks }),
        _ => base.strip_prefix("heap-").and_then(|children| {
            children.parse().ok().map(|children| Algorithm::Heap { children, networks })
        }),
    };
    if two.is_some() || networks == Networks::Two {
        return two;
    }
    match name {
        "shuffle-exchange" => return Some(Algorithm::ShuffleExchange),
        "pairwise" => return Some(Algorithm::Pairwise),
        "dissemination" => return Some(Algorithm::DISSEMINATION),
        "binary" => return Some(Algorithm::BINARY),
        "tournament" => return Some(Algorithm::Tournament),
        "central" => return Some(Algorithm::Central),
        _ => {}
    }
    let (kind, numbers) = name.split_once('-')?;
    match kind {
        "dissemination" => Some(Algorithm::Dissemination { ways: numbers.parse().ok()? }),
        "nomial" => Some(Algorithm::Nomial { k: numbers.parse().ok()? }),
        "optimal" => {
            let (hop, gap) = numbers.split_once('-')?;
            let nanos = |text: &str| text.parse().ok().map(Duration::from_nanos);
            Some(Algorithm::Optimal(HopTiming::new(nanos(hop)?, nanos(gap)?)))
        }
        _ => None,
    }
}
