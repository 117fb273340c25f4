//! Log messages about a table of translations that fills up, without I/O.

use std::time::Duration;

use vigie::{
    Instant,
    forward::tables::{NatLimit, NatUsage, PortBlock},
};

/// From here on, in percent, a table is nearly full; below the second number it is no longer.
const NEARLY: usize = 80;
const NO_LONGER: usize = 70;
/// The interval at which a full table is reported while that goes on.
const EVERY: Duration = Duration::from_secs(10);

/// The last messages.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    is_nearly_full: bool,
    /// The time at which evicted and refused flows were last reported, and the numbers of them.
    reported: Option<(Instant, u64, u64)>,
}

impl Fullness {
    /// Returns what to log.
    pub(super) fn check(&mut self, usage: &NatUsage, now: Instant) -> Option<String> {
        let (last, evicted, refused) = self.reported.unwrap_or((now, 0, 0));
        let is_due = self.reported.is_none() || now.saturating_duration_since(last) >= EVERY;
        let new = (usage.evicted - evicted, usage.refused - refused);
        if new != (0, 0) && is_due {
            self.reported = Some((now, usage.evicted, usage.refused));
            let counts = format!(
                "{} old ones were ended and {} new ones refused since the last report",
                new.0, new.1
            );
            let (of, advice) = match usage.limit {
                Some(NatLimit::Block(PortBlock { host, first, last })) => (
                    format!("{host}, which uses all of its ports ({first}-{last})"),
                    "raise `ports_per_host`, or shorten `idle`",
                ),
                Some(NatLimit::HostPorts { host, max }) if max < usage.ports_max => (
                    format!(
                        "{host}, which uses its share of the ports (`host_share`), {max} of {}",
                        usage.ports_max
                    ),
                    "raise `host_share`, widen `ports`, or shorten `idle`",
                ),
                Some(NatLimit::HostFlows { host, max }) if max < usage.flows_max => (
                    format!(
                        "{host}, which has its share of the translations (`host_share`), {max} of {}",
                        usage.flows_max
                    ),
                    "raise `host_share`, or shorten `idle`",
                ),
                limit => {
                    self.is_nearly_full = true;
                    let advice = match limit {
                        Some(NatLimit::Flows | NatLimit::HostFlows { .. }) => "shorten `idle`",
                        _ => "widen `ports`, or shorten `idle`",
                    };
                    let used = Used(usage);
                    return Some(format!(
                        "has no room for new translations ({used}): {counts}; {advice}"
                    ));
                }
            };
            return Some(format!(
                "has no room for new translations of {of}: {counts}, of all hosts; {advice}"
            ));
        }
        let percent = usage.percent();
        if !self.is_nearly_full && percent >= NEARLY {
            self.is_nearly_full = true;
            return Some(format!("its translations are {percent} % full: {}", Used(usage)));
        }
        if self.is_nearly_full && percent < NO_LONGER && is_due {
            *self = Self { is_nearly_full: false, ..std::mem::take(self) };
            return Some(format!("has room for translations again: {}", Used(usage)));
        }
        None
    }
}

struct Used<'a>(&'a NatUsage);

impl std::fmt::Display for Used<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NatUsage { flows, flows_max, ports, ports_max, .. } = self.0;
        write!(f, "{flows} of {flows_max} translations, {ports} of {ports_max} ports")
    }
}

#[cfg(test)]
mod tests {
    use vigie::forward::tables::{NatEndpoint, NatTable, NatTuple};

    use super::*;

    /// Goal: a host that has its share is named, with the limit that was met. Method: shares of the ports and of the translations.
    #[test]
    fn a_host_with_its_share_is_named() {
        for (ports, flows_max, limit) in [
            ((2000, 2009), 100, "its share of the ports (`host_share`), 5 of 10: "),
            ((2000, 2099), 10, "its share of the translations (`host_share`), 5 of 10: "),
        ] {
            let table =
                NatTable::builder().ports(ports.0, ports.1).flows_max(flows_max).seed(1).build();
            for port in 0..6 {
                open(&table, port, at(0));
            }
            let said = Fullness::default().check(&table.usage(), at(0)).unwrap();
            assert!(said.contains("of 10.0.0.2, ") && said.contains(limit), "{said}");
            assert!(said.contains("raise `host_share`"), "{said}");
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn open(table: &NatTable, port: u16, now: Instant) {
        let (source, destination) = ([10, 0, 0, 2].into(), [192, 0, 2, 1].into());
        let tuple = NatTuple {
            protocol: 17,
            source: NatEndpoint::new(source, port),
            destination: NatEndpoint::new(destination, 53),
            is_echo_reply: false,
        };
        let external = Some([198, 51, 100, 9].into());
        table.open(tuple, (external, None), None, now).unwrap();
    }

    /// Goal: a table that fills up is reported at 80 %, when flows are ended, at most once in ten seconds while that goes
    /// on, and when there is room again. Method: a table of ten ports, flows that are begun and expire.
    #[test]
    fn a_filling_table_is_reported() {
        let table = NatTable::builder().ports(2000, 2009).host_percent(100).seed(1).build();
        let mut fullness = Fullness::default();
        let mut begin = |port, seconds| {
            open(&table, port, at(seconds));
            fullness.check(&table.usage(), at(seconds))
        };
        for port in 0..7 {
            assert_eq!(begin(port, 0), None);
        }
        let said = begin(7, 0).unwrap();
        assert!(said.contains("80 % full: 8 of 65536 translations, 8 of 10 ports"), "{said}");
        assert_eq!((begin(8, 1), begin(9, 2)), (None, None));
        let said = begin(10, 3).unwrap();
        assert!(said.contains("no room") && said.contains(": 1 old ones"), "{said}");
        assert_eq!((begin(11, 4), begin(12, 12)), (None, None));
        let said = begin(13, 13).unwrap();
        assert!(said.contains(": 3 old ones"), "{said}");
        table.expire(at(400));
        let said = fullness.check(&table.usage(), at(400)).unwrap();
        assert!(said.contains("room for translations again: 0 of 65536"), "{said}");
        assert_eq!(fullness.check(&table.usage(), at(401)), None);
    }
}
