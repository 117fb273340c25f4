//! Figures that goals find in the rows of barriers.

use serde_json::Value;
use vigie_barrier::cluster::paper::{Case, QUOTED};

use super::simulation::{
    ALGORITHM, CASE, DRIVER, FOUR_ARY_CASE, GOLDEN_DIFFERENCE_NS, MEAN_US, MEMBERS, NETWORK,
    PAPER_US, SET, medium_name,
};
use crate::report::Row;
use crate::report::figure::Figure;

/// A barrier: its algorithm, the number of its members and their network, with calibrated parameters.
pub(crate) type BarrierCase = (&'static str, u32, &'static str);

fn row<'a>(
    rows: &'a [Row],
    [driver, set]: [&str; 2],
    (algorithm, members, network): (&str, u32, &str),
) -> Option<&'a Row> {
    let text = |row: &'a Row, key| row.parameters.get(key).and_then(Value::as_str);
    // The optimal tree is another one for each set of parameters.
    let is_algorithm =
        |name: &str| name == algorithm || (algorithm == "optimal" && name.starts_with("optimal-"));
    rows.iter().find(|row| {
        row.case == CASE
            && row.parameters.get(MEMBERS).and_then(Value::as_u64) == Some(members.into())
            && text(row, NETWORK) == Some(network)
            && text(row, SET) == Some(set)
            && text(row, DRIVER) == Some(driver)
            && text(row, ALGORITHM).is_some_and(is_algorithm)
    })
}

fn mean(rows: &[Row], set: &str, barrier: BarrierCase) -> Option<Figure> {
    let row = row(rows, ["steps", set], barrier)?;
    Some(Figure::new(row.figure(MEAN_US)?, row.samples()))
}

fn quotient(own: Figure, base: Figure) -> Figure {
    Figure::new(own.value / base.value, own.samples.min(base.samples))
}

/// How far a simulated time is from the paper's, as a part of that.
pub(crate) fn paper_error(rows: &[Row], barrier: BarrierCase) -> Option<Figure> {
    let row = row(rows, ["steps", "calibrated"], barrier)?;
    let error = row.figure(MEAN_US)? / row.figure(PAPER_US)? - 1.0;
    Some(Figure::new(error.abs(), row.samples()))
}

/// The row of a time that the paper quotes.
pub(super) fn quoted<'a>(rows: &'a [Row], set: &str, case: &Case) -> Option<&'a Row> {
    row(rows, ["steps", set], (&case.algorithm.to_string(), case.members, medium_name(case.medium)))
}

/// The mean of [`paper_error`] over all that the paper quotes.
pub(crate) fn mean_error(rows: &[Row], set: &str) -> Option<Figure> {
    let error = |case: &Case| {
        let row = quoted(rows, set, case)?;
        Some((row.figure(MEAN_US)? / case.paper_us? - 1.0).abs())
    };
    let errors = QUOTED.iter().map(error).collect::<Option<Vec<_>>>()?;
    let count = errors.len() as f64;
    Some(Figure::new(errors.iter().sum::<f64>() / count, QUOTED.len() as u64))
}

/// The largest ratio of a time to the next one in an order that is to be kept.
pub(crate) fn largest_ratio(rows: &[Row], order: &[BarrierCase]) -> Option<Figure> {
    let means: Option<Vec<_>> =
        order.iter().map(|barrier| mean(rows, "calibrated", *barrier)).collect();
    let means = means?;
    let ratios = means.windows(2).map(|pair| quotient(pair[0], pair[1]));
    ratios.max_by(|a, b| a.value.total_cmp(&b.value))
}

/// How many times as long the first takes as the second.
pub(crate) fn times_slower(rows: &[Row], [slow, fast]: [BarrierCase; 2]) -> Option<Figure> {
    Some(quotient(mean(rows, "calibrated", slow)?, mean(rows, "calibrated", fast)?))
}

/// The largest difference of a sum of times to the stored one, in nanoseconds.
pub(crate) fn golden_difference(rows: &[Row]) -> Option<Figure> {
    let of_switches = rows.iter().filter_map(|row| row.figure(GOLDEN_DIFFERENCE_NS));
    let differences: Vec<_> = of_switches.collect();
    let largest = differences.iter().copied().max_by(f64::total_cmp)?;
    Some(Figure::new(largest, differences.len() as u64))
}

/// What a barrier takes with other parameters, to what it takes with the calibrated ones.
pub(crate) fn ablation(rows: &[Row], set: &str, barrier: BarrierCase) -> Option<Figure> {
    Some(quotient(mean(rows, set, barrier)?, mean(rows, "calibrated", barrier)?))
}

/// By which part the first is faster than the second.
pub(crate) fn saved(rows: &[Row], set: &str, [own, base]: [BarrierCase; 2]) -> Option<Figure> {
    let ratio = quotient(mean(rows, set, own)?, mean(rows, set, base)?);
    Some(Figure { value: 1.0 - ratio.value, ..ratio })
}

/// The largest ratio of a time of the member machine to that of the bare steps, over all that the paper quotes.
pub(crate) fn recovery_cost(rows: &[Row]) -> Option<Figure> {
    let of = |driver, case: &Case| {
        let name = case.algorithm.to_string();
        let barrier = (&*name, case.members, medium_name(case.medium));
        let row = row(rows, [driver, "calibrated"], barrier)?;
        Some(Figure::new(row.figure(MEAN_US)?, row.samples()))
    };
    let ratio = |case: &Case| Some(quotient(of("members", case)?, of("steps", case)?));
    let ratios = QUOTED.iter().map(ratio).collect::<Option<Vec<_>>>()?;
    ratios.into_iter().max_by(|a, b| a.value.total_cmp(&b.value))
}

fn four_ary(rows: &[Row], key: &str) -> Option<Figure> {
    let row = rows.iter().find(|row| row.case == FOUR_ARY_CASE)?;
    Some(Figure::new(row.figure(key)?, row.samples()))
}

/// The o_r at which a 4-ary tree and shuffle exchange take the same time on a fast link.
pub(crate) fn crossing_us(rows: &[Row]) -> Option<Figure> {
    four_ary(rows, "crossing_us")
}

/// By which part a 4-ary tree is faster at most on the paper's link.
pub(crate) fn gain(rows: &[Row]) -> Option<Figure> {
    four_ary(rows, "gain")
}

#[cfg(test)]
mod tests {
    use vigie_barrier::cluster::Medium;

    use super::super::simulation::{ParameterSet, SimulationPlan};
    use super::*;
    use crate::report::progress::Progress;

    #[test]
    fn goals_find_what_is_simulated() {
        // Goal: names and numbers in goals are those of rows, and an error is of the paper's number. Method: the switches' part
        // of what goals simulate, by steps and by members.
        let mut plan = SimulationPlan::goals();
        let is_switch = |case: &Case| case.medium == Medium::Switch;
        plan.cases.retain(|(case, set)| is_switch(case) && *set != ParameterSet::Bare);
        plan.of_members.retain(|(case, _)| is_switch(case));
        plan.has_four_ary = false;
        let rows = plan.run(&mut Progress::hidden()).rows;
        let exchange = ("shuffle-exchange", 32, "switch");
        let error = paper_error(&rows, exchange).expect("simulated");
        assert!((error.value - (1.0 - 172.5 / 174.0)).abs() < 1e-9 && error.samples == 100);
        assert_eq!(golden_difference(&rows), Some(Figure::new(0.0, 8 + 8)));
        assert_eq!(mean_error(&rows, "calibrated"), None, "hubs are missing");
        let optimal = saved(&rows, "calibrated", [("optimal", 32, "switch"), exchange]);
        assert!(optimal.is_some_and(|figure| figure.value > 0.15), "{optimal:?}");
        assert!(ablation(&rows, "one-frame", ("concurrent", 16, "switch")).is_some());
        assert_eq!(paper_error(&rows, ("shuffle-exchange", 32, "hub")), None);
        assert_eq!((crossing_us(&rows), gain(&rows)), (None, None));
    }
}
