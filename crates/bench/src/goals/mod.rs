//! All goals of the project, as data: `goals.toml` has the runs that are needed, the figure of each goal and its bound.
//!
//! New measurements add their goals there.

mod goal;
mod measurement;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

pub(crate) use self::goal::{Area, Checked, Goal, Reason};
use crate::error::BenchError;
use crate::report::Outcome;

/// The goals and the reasons why some are missed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Goals {
    reason: BTreeMap<String, Reason>,
    experiment: Vec<Experiment>,
}

/// Runs that serve one or more goals.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    /// Command lines of `vigie-bench`, without its name.
    runs: Vec<String>,
    goal: Vec<Goal>,
}

static GOALS: LazyLock<Goals> = LazyLock::new(|| {
    toml::from_str(include_str!("goals.toml")).expect("invariant: a test reads the goals")
});

/// Returns the command lines that are run for goals.
#[cfg(test)]
pub(crate) fn all_runs() -> impl Iterator<Item = &'static str> {
    GOALS.experiment.iter().flat_map(|experiment| &experiment.runs).map(String::as_str)
}

/// Measures what the goals of `area` (of all areas if it is `None`) need, each experiment once, and evaluates them. `run`
/// measures what a command line says. The outcome holds the rows.
///
/// # Errors
/// Those of the measurements. A goal that is missed is not an error.
pub(crate) fn check(
    area: Option<Area>,
    run: &mut dyn FnMut(&str) -> Result<Outcome, BenchError>,
) -> Result<(Vec<Checked>, Outcome), BenchError> {
    let mut checked = Vec::new();
    let mut all = Outcome::default();
    for experiment in &GOALS.experiment {
        let is_asked = |goal: &&Goal| area.is_none_or(|area| area == goal.area);
        let mut goals = experiment.goal.iter().filter(is_asked).peekable();
        if goals.peek().is_none() {
            continue;
        }
        let mut rows = Vec::new();
        for words in &experiment.runs {
            let outcome = run(words)?;
            rows.extend(outcome.rows);
            all.priority = outcome.priority.or(all.priority);
        }
        checked.extend(goals.map(|goal| {
            let known = goal.known.as_ref();
            let reason = known.map(|known| &GOALS.reason[&known.reason]);
            Checked { goal, reason, verdict: goal.evaluate(&rows) }
        }));
        all.rows.extend(rows);
    }
    Ok((checked, all))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::ValueEnum as _;

    use super::*;

    fn all_goals() -> impl Iterator<Item = &'static Goal> {
        GOALS.experiment.iter().flat_map(|experiment| &experiment.goal)
    }

    /// The name that a heading has in a link.
    fn anchor(heading: &str) -> String {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect()
    }

    /// Goal: each entry can be told from the others, is about rows of some system or case, and every area has goals.
    /// Method: all entries.
    #[test]
    fn every_goal_names_what_is_measured() {
        let mut seen = Vec::new();
        for goal in all_goals() {
            let name = (goal.area, &goal.case, &goal.figure, goal.bound.to_string());
            assert!(!seen.contains(&name), "{name:?}");
            assert!(goal.command.starts_with("vigie-bench "), "{name:?}");
            goal.measured.check().unwrap_or_else(|problem| panic!("{name:?}: {problem}"));
            seen.push(name);
        }
        for area in Area::value_variants() {
            assert!(seen.iter().any(|goal| goal.0 == *area), "{area}");
        }
    }

    /// Goal: each reason is of a goal that is known to be missed, and its page has the section. Method: look them up.
    #[test]
    fn reasons_are_used_and_their_pages_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for known in all_goals().filter_map(|goal| goal.known.as_ref()) {
            assert!(GOALS.reason.contains_key(&known.reason), "{known:?}");
        }
        for (name, reason) in &GOALS.reason {
            let mut known = all_goals().filter_map(|goal| goal.known.as_ref());
            assert!(known.any(|known| known.reason == *name), "{name}");
            let (page, section) = reason.page.split_once('#').expect("a section");
            let page = fs::read_to_string(root.join(page)).expect("the page");
            let mut headings = page.lines().filter(|line| line.starts_with('#'));
            assert!(headings.any(|heading| anchor(heading) == section), "{section}");
        }
    }

    /// Goal: of the areas only the one that is asked for is run. Method: runs that give nothing, recorded.
    #[test]
    fn only_what_an_area_needs_is_run() {
        let mut runs = Vec::new();
        let (checked, _) = check(Some(Area::Http), &mut |words| {
            runs.push(words.to_owned());
            Ok(Outcome::default())
        })
        .expect("it runs nothing");
        assert_eq!((runs, checked.len()), (vec!["http".to_owned()], 5));
        assert!(checked.iter().all(|goal| !goal.verdict.is_met()));
    }
}
