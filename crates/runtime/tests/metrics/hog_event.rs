//! The event that names a hog.

use std::time::Duration;

use tracing::Level;
use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Flavor, Runtime, task};

use crate::{kit::guard::against_hang, log::Log};

/// Goal: a hog is named once, with its name and spawn site, in a warning; a second one from the same
/// place is not, as long as it follows at once. Method: a listener on the thread that runs the tasks.
#[test]
fn a_hog_is_named_once() {
    against_hang(|| {
        let log = Log::new(|metadata| metadata.target() == "vigie_runtime::hog");
        let quantum = Duration::from_micros(100);
        let builder = Runtime::builder().flavor(Flavor::UserLevel).quantum(quantum);
        let runtime = builder.build().expect("a runtime");
        let (began, hogs) = tracing::subscriber::with_default(log.clone(), || {
            runtime.block_on(async {
                let began = monotonic_now();
                for _ in 0..10 {
                    let hog = task::Builder::new().name("greedy").spawn(async move {
                        let end = monotonic_now() + quantum * 12;
                        while monotonic_now() < end {}
                    });
                    hog.await.expect("no panic");
                }
                let hogs = vigie_runtime::Handle::current().metrics().hogs;
                (began, hogs)
            })
        });
        let is_quick = monotonic_now() - began < Duration::from_secs(1);
        let told = log.with("");
        assert_eq!(hogs, 10);
        let first = told.first().expect("it is told");
        assert!(first.starts_with(&Level::WARN.to_string()), "{first}");
        for part in ["task=\"greedy\"", "hog_event.rs", "lane=", "duration=", "suppressed=0"] {
            assert!(first.contains(part), "{part}: {first}");
        }
        // On a machine that stood still for a second, more of them may be told.
        assert!((told.len() as u64) < hogs && (told.len() == 1 || !is_quick), "{told:?}");
    });
}
