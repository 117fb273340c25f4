//! Systems by their names.

use super::datagram::own_datagrams;
use super::remote::{own_remote, remote_carriers};
use super::{Carrier, OwnCarrier, UnknownCarrier, carriers, own_carriers};

/// Returns the system of this very name, of those whose ranks are processes of this program.
///
/// # Errors
/// If the name is unknown; the error lists the known ones.
pub(crate) fn own(name: &str) -> Result<&'static OwnCarrier, UnknownCarrier> {
    let mut all = own_carriers().iter().copied().chain(own_datagrams()).chain(own_remote());
    all.find(|own| own.name == name).ok_or_else(|| unknown(name))
}

/// Returns the systems that `word` stands for: one of this name and those of this family.
///
/// # Errors
/// If the name is unknown; the error lists the known ones.
pub(crate) fn named(word: &str) -> Result<Vec<&'static dyn Carrier>, UnknownCarrier> {
    let is_meant = |carrier: &&dyn Carrier| carrier.name() == word || carrier.family() == word;
    let all = carriers().into_iter().chain(remote_carriers());
    let found: Vec<_> = all.filter(is_meant).collect();
    if found.is_empty() { Err(unknown(word)) } else { Ok(found) }
}

fn unknown(name: &str) -> UnknownCarrier {
    let known = carriers().into_iter().map(|carrier| carrier.name()).collect::<Vec<_>>();
    UnknownCarrier { name: name.to_owned(), known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found() {
        // Goal: every system is found by its own name, and by its family among others. Method: all.
        for one in carriers() {
            assert!(named(one.name()).unwrap().iter().any(|found| found.label() == one.label()));
            assert!(named(one.family()).unwrap().iter().any(|found| found.name() == one.name()));
        }
        let mut names: Vec<_> = carriers().into_iter().map(|carrier| carrier.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), carriers().len());
    }

    #[test]
    fn an_unknown_name_tells_the_known_ones() {
        // Goal: the error says what to write instead. Method: a misspelt name.
        let error = named("mpitch").unwrap_err().to_string();
        assert!(error.contains("\"mpitch\"") && error.contains("mpich, "), "{error}");
    }
}
