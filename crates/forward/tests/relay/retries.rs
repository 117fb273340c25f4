//! The budget of retries, over real sockets.

use std::io;

use tokio::io::AsyncReadExt;
use vigie_detect::net::TcpListener;
use vigie_forward::relay::{Relay, RelayBuilder, RetryBudget};

use crate::{Serving, echo, exchange, local, run};

/// A relay to three ports on which nothing listens.
async fn to_a_dead_cluster() -> io::Result<RelayBuilder> {
    let mut builder = Relay::builder(local());
    let mut taken = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind(local()).await?;
        builder = builder.upstream(listener.local_addr()?);
        taken.push(listener);
    }
    Ok(builder)
}

/// Connects so often, and sees the end each time.
async fn meet_the_end(relay: &Serving, times: u64) -> io::Result<()> {
    for _ in 0..times {
        assert_eq!(relay.connect().await?.read(&mut [0]).await?, 0, "no byte, and no reset");
    }
    Ok(())
}

/// Goal: a cluster that is dead gets no more attempts than the budget allows, and connections beyond it end at once, with a reason of
/// their own. Method: three closed ports; half a retry for each connection, then the default, which lets all of so few retry.
#[test]
fn a_dead_cluster_is_not_stormed() {
    run(async {
        let half = RetryBudget::default().percent(50).min_per_second(0);
        let relay = Serving::start(to_a_dead_cluster().await?.retries(half));
        meet_the_end(&relay, 10).await?;
        relay.until(|stats| stats.over_retry_budget == 10).await;
        let stats = relay.handle.stats();
        assert!((1..=5).contains(&stats.retries), "{stats:?}");
        assert_eq!((stats.connects_failed, stats.refused), (10 + stats.retries, 0), "{stats:?}");

        let relay = Serving::start(to_a_dead_cluster().await?);
        meet_the_end(&relay, 10).await?;
        relay.until(|stats| stats.refused == 10).await;
        let stats = relay.handle.stats();
        assert_eq!((stats.retries, stats.connects_failed), (20, 30), "{stats:?}");
        assert_eq!(stats.over_retry_budget, 0, "{stats:?}");
        Ok(())
    });
}

/// Goal: without a budget, a target that fails costs a connection, and those that turn to another one first need none. Method: a closed
/// port before an echo, until a client is answered.
#[test]
fn what_needs_no_retry_passes_without_a_budget() {
    run(async {
        let closed = TcpListener::bind(local()).await?.local_addr()?;
        let none = RetryBudget::default().percent(0).min_per_second(0);
        let builder = Relay::builder(local()).upstream(closed).upstream(echo().await?);
        let relay = Serving::start(builder.retries(none));
        meet_the_end(&relay, 1).await?;
        relay.until(|stats| stats.over_retry_budget == 1).await;
        let mut failed = 1;
        while exchange(relay.connect().await?, b"who?".to_vec()).await.ok().as_deref()
            != Some(b"who?")
        {
            failed += 1;
        }
        relay.until(|stats| stats.finished == 1).await;
        let stats = relay.handle.stats();
        assert_eq!((stats.over_retry_budget, stats.retries), (failed, 0), "{stats:?}");
        Ok(())
    });
}
