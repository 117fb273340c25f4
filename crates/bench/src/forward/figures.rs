//! The figures of rows that goals compare.

use super::keys::{
    MODEL_MB_S, MODEL_PERCENT, MODEL_US, SIMULATED_MB_S, SIMULATED_PERCENT, SIMULATED_US, TABLE_US,
    WINDOW,
};
use crate::report::{Figure, Row};

/// Distances of model and simulation from Table 3 and T(8192): the largest, in microseconds.
pub(crate) fn table_distance(rows: &[Row]) -> Option<Figure> {
    let distances = rows.iter().filter_map(|row| {
        let table = row.figure(TABLE_US)?;
        let distance = |key| Some((row.figure(key)? - table).abs());
        Some(f64::max(distance(MODEL_US)?, distance(SIMULATED_US)?))
    });
    // Both are whole nanoseconds; what a float adds to that is less than a picosecond.
    largest(distances.map(|distance| (distance * 1e6).round() / 1e6))
}

/// Relative differences of simulation and closed form with one message in the node: the largest.
pub(crate) fn simulation_error(rows: &[Row]) -> Option<Figure> {
    let is_alone = |row: &&Row| {
        let window = row.parameters.get(WINDOW);
        row.case != "flows" && window.is_none_or(|window| window.as_u64() == Some(1))
    };
    let pairs = [(MODEL_US, SIMULATED_US), (MODEL_MB_S, SIMULATED_MB_S)];
    largest(rows.iter().filter(is_alone).flat_map(|row| {
        pairs.into_iter().filter_map(|(model, simulated)| {
            Some((row.figure(simulated)? / row.figure(model)? - 1.0).abs())
        })
    }))
}

/// How far model and simulation are from 45 % at this window, in points.
pub(crate) fn gain_distance(rows: &[Row], window: u64) -> Option<Figure> {
    let is_meant = |row: &&Row| row.case == "gain" && row.number(WINDOW) == Some(window);
    let row = rows.iter().find(is_meant)?;
    let distance = |key| Some((row.figure(key)? - 45.0).abs());
    largest([distance(MODEL_PERCENT)?, distance(SIMULATED_PERCENT)?].into_iter())
}

fn largest(values: impl Iterator<Item = f64>) -> Option<Figure> {
    let mut count = 0;
    let found = values.inspect(|_| count += 1).reduce(f64::max)?;
    Some(Figure::new(found, count))
}
