//! Figures that goals find in the rows of barriers.

use vigie_barrier::cluster::paper::{Case, QUOTED};

use super::simulation::{
    ALGORITHM, CASE, DRIVER, GOLDEN_DIFFERENCE_NS, MEAN_US, MEMBERS, NETWORK, SET, medium_name,
};
use crate::report::{Figure, Row, largest};

fn row<'a>(
    rows: &'a [Row],
    [driver, set]: [&str; 2],
    (algorithm, members, network): (&str, u32, &str),
) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.case == CASE
            && row.number(MEMBERS) == Some(members.into())
            && row.text(NETWORK) == network
            && row.text(SET) == set
            && row.text(DRIVER) == driver
            && row.text(ALGORITHM) == algorithm
    })
}

/// The row of a time that the paper quotes.
pub(super) fn quoted<'a>(rows: &'a [Row], set: &str, case: &Case) -> Option<&'a Row> {
    row(rows, ["steps", set], (&case.algorithm.to_string(), case.members, medium_name(case.medium)))
}

/// The mean of |simulated / paper − 1| over all that the paper quotes.
pub(crate) fn mean_error(rows: &[Row], set: &str) -> Option<Figure> {
    let error = |case: &Case| {
        let row = quoted(rows, set, case)?;
        Some((row.figure(MEAN_US)? / case.paper_us? - 1.0).abs())
    };
    let errors = QUOTED.iter().map(error).collect::<Option<Vec<_>>>()?;
    let count = errors.len() as f64;
    Some(Figure::new(errors.iter().sum::<f64>() / count, QUOTED.len() as u64))
}

/// The largest difference of a sum of times to the stored one, in nanoseconds.
pub(crate) fn golden_difference(rows: &[Row]) -> Option<Figure> {
    let of_switches = rows.iter().filter_map(|row| row.figure(GOLDEN_DIFFERENCE_NS));
    let differences: Vec<_> = of_switches.collect();
    let largest = differences.iter().copied().max_by(f64::total_cmp)?;
    Some(Figure::new(largest, differences.len() as u64))
}

/// The largest ratio of a time of the member machine to that of the bare steps, over all that the paper quotes.
pub(crate) fn recovery_cost(rows: &[Row]) -> Option<Figure> {
    let of = |driver, case: &Case| {
        let name = case.algorithm.to_string();
        let barrier = (&*name, case.members, medium_name(case.medium));
        let row = row(rows, [driver, "calibrated"], barrier)?;
        Some(Figure::new(row.figure(MEAN_US)?, row.samples()))
    };
    let ratio = |case: &Case| Some(of("members", case)?.to(of("steps", case)?));
    largest(QUOTED.iter().map(ratio).collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use vigie_barrier::cluster::Medium;

    use super::super::simulation::{ParameterSet, SimulationPlan};
    use super::*;
    use crate::report::Plan as _;
    use crate::report::Progress;

    #[test]
    fn sums_are_those_that_are_stored() {
        // Goal: no simulated sum differs from the stored one, and a mean error needs all cases. Method: the switches' part of
        // what goals simulate, by steps and by members.
        let mut plan = SimulationPlan::goals();
        let is_switch = |case: &Case| case.medium == Medium::Switch;
        plan.cases.retain(|(case, set)| is_switch(case) && *set != ParameterSet::Bare);
        plan.of_members.retain(|(case, _)| is_switch(case));
        plan.has_four_ary = false;
        let rows = plan.run(0, &mut Progress::hidden()).expect("simulated").rows;
        assert_eq!(golden_difference(&rows), Some(Figure::new(0.0, 8 + 8)));
        assert_eq!(mean_error(&rows, "calibrated"), None, "hubs are missing");
    }
}
