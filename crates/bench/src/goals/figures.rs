//! The figures that goals find in rows.

use serde_json::Value;

use crate::cases::fairness;
use crate::idle;
use crate::pending;
use crate::reaction;
use crate::report::figure::Figure;
use crate::report::repetition::WORK_PER_S;
use crate::report::{Row, find};
use crate::schedulers::System;
use crate::switches::{self, SwitchKind};

/// Numbers of compute tasks beside which vigie is to react as kernel threads do.
pub(crate) const HOGS: [u32; 3] = [2, 5, 10];

/// The largest mean over 1, 2, 5 and 10 compute tasks to the smallest.
pub(crate) fn mean_spread(rows: &[Row], system: System) -> Option<Figure> {
    let rows = [1, 2, 5, 10]
        .into_iter()
        .map(|compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute)))
        .collect::<Option<Vec<_>>>()?;
    let means = rows.iter().map(|row| row.figure("mean_us")).collect::<Option<Vec<_>>>()?;
    let largest = means.iter().copied().fold(f64::MIN, f64::max);
    let smallest = means.iter().copied().fold(f64::MAX, f64::min);
    let samples = rows.iter().map(|row| row.samples()).min()?;
    Some(Figure::new(largest / smallest, samples))
}

/// The largest mean over 1, 2, 5 and 10 compute tasks.
pub(crate) fn largest_mean(rows: &[Row], system: System) -> Option<Figure> {
    largest([1, 2, 5, 10].into_iter().map(|compute| {
        let row = find(rows, system, reaction::CASE, (reaction::COMPUTE, compute))?;
        Some(Figure::new(row.figure("mean_us")?, row.samples()))
    }))
}

/// The largest of a percentile over [`HOGS`] compute tasks.
pub(crate) fn hogs_percentile(rows: &[Row], system: System, key: &str) -> Option<Figure> {
    largest(HOGS.into_iter().map(|compute| {
        let row = find(rows, system, reaction::CASE, (reaction::COMPUTE, compute))?;
        percentile(row, "", key)
    }))
}

/// The largest ratio of two systems' medians over [`HOGS`] compute tasks.
pub(crate) fn hogs_p50_ratio(rows: &[Row], systems: [System; 2]) -> Option<Figure> {
    largest(HOGS.into_iter().map(|compute| p50_ratio(rows, systems, compute)))
}

/// The smallest ratio of two systems' work over the numbers of compute tasks that were measured.
pub(crate) fn least_work_ratio(rows: &[Row], systems: [System; 2]) -> Option<Figure> {
    let of = |system| rows.iter().filter(move |row: &&Row| row.system == system);
    let ratios = of(systems[0]).map(|own| {
        let compute = own.parameters.get(reaction::COMPUTE);
        let base = of(systems[1]).find(|row| row.parameters.get(reaction::COMPUTE) == compute)?;
        quotient(own, base, WORK_PER_S)
    });
    let ratios = ratios.collect::<Option<Vec<_>>>()?;
    ratios.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
}

/// A percentile of a system's only row of a case. `prefix` names the samples, if they are not the row's
/// own.
pub(crate) fn case_percentile(
    rows: &[Row],
    (system, case): (System, &str),
    prefix: &str,
    key: &str,
) -> Option<Figure> {
    percentile(only(rows, system, case)?, prefix, key)
}

/// A figure of a system's only row of a case that is no percentile.
pub(crate) fn case_figure(
    rows: &[Row],
    (system, case): (System, &str),
    key: &str,
) -> Option<Figure> {
    let row = only(rows, system, case)?;
    Some(Figure::new(row.figure(key)?, row.samples()))
}

/// A figure of the first system to that of the second, in their only rows of a case.
pub(crate) fn case_ratio(
    rows: &[Row],
    systems: [System; 2],
    case: &str,
    key: &str,
) -> Option<Figure> {
    quotient(only(rows, systems[0], case)?, only(rows, systems[1], case)?, key)
}

/// The smallest share of the work that a system kept beside others, to the fair share.
pub(crate) fn least_share(rows: &[Row], system: System) -> Option<Figure> {
    let rows = rows.iter().filter(|row| row.system == system && row.case == fairness::CASE);
    // A case without a figure is no small share, and no large one either: nothing is known.
    let share = |row: &Row| Some(Figure::new(row.figure(fairness::WORK_OF_FAIR)?, row.samples()));
    let shares = rows.map(share).collect::<Option<Vec<_>>>()?;
    shares.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
}

fn only<'a>(rows: &'a [Row], system: System, case: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.system == system && row.case == case)
}

/// A percentile of a row, or, where its samples are too few, the next lower one that they carry: the
/// figure is that or more. A system so slow that few samples fit in has not escaped its goal.
fn percentile(row: &Row, prefix: &str, key: &str) -> Option<Figure> {
    const UPWARDS: [&str; 4] = ["p50_us", "p90_us", "p99_us", "p99.9_us"];
    let asked = UPWARDS.iter().position(|known| *known == key)?;
    let figure = |key: &str| row.figure(&format!("{prefix}{key}"));
    let samples = row.figures.get(&format!("{prefix}samples")).and_then(Value::as_u64)?;
    let found = UPWARDS[..=asked].iter().enumerate().rev();
    let (position, value) = found.clone().find_map(|(at, key)| Some((at, figure(key)?)))?;
    Some(Figure { value, samples, is_least: position < asked })
}

/// The largest of some figures, if there are all of them.
fn largest(figures: impl Iterator<Item = Option<Figure>>) -> Option<Figure> {
    let figures = figures.collect::<Option<Vec<_>>>()?;
    let samples = figures.iter().map(|figure| figure.samples).min()?;
    let largest = figures.iter().copied().max_by(|a, b| a.value.total_cmp(&b.value))?;
    let is_least = figures.iter().any(|figure| figure.is_least);
    Some(Figure { value: largest.value, samples, is_least })
}

/// The mean at ten compute tasks to that at one.
pub(crate) fn growth(rows: &[Row], system: System) -> Option<Figure> {
    let row = |compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    quotient(row(10)?, row(1)?, "mean_us")
}

/// The median of the first system to that of the second.
pub(crate) fn p50_ratio(rows: &[Row], systems: [System; 2], compute: u32) -> Option<Figure> {
    let row = |system| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    let [own, base] = systems.map(row);
    quotient(own?, base?, "p50_us")
}

fn quotient(own: &Row, base: &Row, key: &str) -> Option<Figure> {
    let value = own.figure(key)? / base.figure(key)?;
    Some(Figure::new(value, own.samples().min(base.samples())))
}

/// The completion time to that with the fewest waiting tasks.
pub(crate) fn completion_ratio(rows: &[Row], system: System, waiting: u32) -> Option<Figure> {
    let row = find(rows, system, pending::CASE, (pending::WAITING, waiting))?;
    let samples = row.figures.get("rounds").and_then(Value::as_u64)?;
    Some(Figure::new(row.figure("completion_ratio")?, samples))
}

/// A figure of a server that was left alone.
pub(crate) fn idle_figure(rows: &[Row], system: System, key: &str) -> Option<Figure> {
    let row = rows.iter().find(|row| row.system == system && row.case == idle::CASE)?;
    Some(Figure::new(row.figure(key)?, 1))
}

/// Allocations per switch of a kind.
pub(crate) fn allocations(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "allocations")
}

/// System calls per switch of a kind.
pub(crate) fn system_calls(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "system_calls")
}

fn per_switch(rows: &[Row], system: System, kind: SwitchKind, key: &str) -> Option<Figure> {
    let is_kind =
        |row: &&Row| row.parameters.get("kind").and_then(Value::as_str) == Some(kind.name());
    let mut rows = rows.iter().filter(|row| row.system == system && row.case == switches::CASE);
    let row = rows.find(is_kind)?;
    let switches = row.figures.get("switches").and_then(Value::as_u64)?;
    Some(Figure::new(row.figure(key)? / switches as f64, switches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reacted(system: System, compute: u32, mean_us: f64, samples: u64) -> Row {
        let row = Row::new(system, reaction::CASE).parameter(reaction::COMPUTE, compute);
        let row = row.with_figure("mean_us", mean_us).with_figure("p50_us", mean_us / 2.0);
        row.with_figure("samples", samples)
    }

    #[test]
    fn the_spread_needs_all_of_its_cases() {
        // Goal: largest to smallest, samples of the poorest case, nothing if a case is missing.
        // Method: rows with known figures.
        let system = System::VigieEnhanced;
        let mut rows = vec![
            reacted(system, 1, 5_000.0, 90),
            reacted(system, 2, 4_000.0, 100),
            reacted(system, 5, 4_800.0, 60),
            reacted(System::Tokio, 10, 99_000.0, 5),
        ];
        assert_eq!(mean_spread(&rows, system), None);
        rows.push(reacted(system, 10, 4_400.0, 70));
        assert_eq!(mean_spread(&rows, system), Some(Figure::new(1.25, 60)));
    }

    #[test]
    fn ratios_compare_the_right_rows() {
        // Goal: own figure above, the peer's below. Method: rows with known figures.
        let rows = [reacted(System::Vigie, 2, 30.0, 9), reacted(System::Tokio, 2, 120.0, 7)];
        let ratio = p50_ratio(&rows, [System::Vigie, System::Tokio], 2);
        assert_eq!(ratio, Some(Figure::new(0.25, 7)));
        assert_eq!(p50_ratio(&rows, [System::Vigie, System::Smol], 2), None);
    }

    #[test]
    fn the_worst_number_of_compute_tasks_counts() {
        // Goal: the largest over 2, 5, 10, the fewest samples, and a lower bound where one percentile is
        // missing. Method: rows with known figures.
        let row = |compute, p99, samples| {
            reacted(System::Vigie, compute, 8.0, samples).with_figure("p99_us", p99)
        };
        let mut rows = vec![row(2, 30.0, 2_000), row(5, 50.0, 1_500), row(10, 40.0, 1_700)];
        let found = |rows: &[Row]| hogs_percentile(rows, System::Vigie, "p99_us");
        assert_eq!(found(&rows), Some(Figure::new(50.0, 1_500)));
        rows[2] = reacted(System::Vigie, 10, 9_000.0, 20);
        let least = Figure { is_least: true, ..Figure::new(4_500.0, 20) };
        assert_eq!(found(&rows), Some(least));
        assert_eq!(found(&rows[1..]), None);
    }

    #[test]
    fn the_least_share_needs_all_of_its_cases() {
        // Goal: the smallest share and the smallest work ratio; nothing if a case has none.
        // Method: rows with known figures.
        let row = |share: f64| {
            let row = Row::new(System::Vigie, fairness::CASE).with_figure("samples", 9);
            row.with_figure(fairness::WORK_OF_FAIR, share)
        };
        let mut rows = vec![row(0.99), row(0.91)];
        assert_eq!(least_share(&rows, System::Vigie), Some(Figure::new(0.91, 9)));
        rows.push(Row::new(System::Vigie, fairness::CASE));
        assert_eq!(least_share(&rows, System::Vigie), None);
        let work = |system, compute, work: f64| {
            reacted(system, compute, 1.0, 5).with_figure(WORK_PER_S, work)
        };
        let (own, base) = (System::Vigie, System::Tokio);
        let rows =
            [work(own, 2, 9.0), work(base, 2, 10.0), work(own, 10, 5.0), work(base, 10, 5.0)];
        assert_eq!(least_work_ratio(&rows, [own, base]), Some(Figure::new(0.9, 5)));
        assert_eq!(least_work_ratio(&rows[..3], [own, base]), None);
    }

    #[test]
    fn figures_per_switch() {
        // Goal: each kind has its own row. Method: two rows of one system.
        let row = |kind: SwitchKind, allocations: u64| {
            let row = Row::new(System::Vigie, switches::CASE).parameter("kind", kind.name());
            row.with_figure("switches", 100).with_figure("allocations", allocations)
        };
        let rows = [row(SwitchKind::Yield, 0), row(SwitchKind::Wait, 50)];
        let value = |kind| allocations(&rows, System::Vigie, kind).map(|figure| figure.value);
        assert_eq!((value(SwitchKind::Yield), value(SwitchKind::Wait)), (Some(0.0), Some(0.5)));
        assert_eq!(system_calls(&rows, System::Vigie, SwitchKind::Yield), None);
    }
}
