//! Profiles for the daemon: a run as from the command line, whose profiles go to a callback.

use std::sync::Arc;

use clap::Parser;
use tokio::sync::Notify;

use super::Failure;
use super::audience::{Recorder, Wanted};
use super::command_line::CommandLine;
use super::session;
use crate::daemon::profile::{Order, Take};

/// Profiles a process until it ends or `stop` is notified. Blocks.
pub(super) fn record(order: &Order, take: Take, stop: &Arc<Notify>) -> Result<(), String> {
    let command_line = CommandLine::try_parse_from(words(order)).map_err(|error| error.to_string())?;
    let wanted = Wanted::Nothing(Recorder { take, looks_at_cost: order.max_overhead.is_some() });
    let outcome = session::profile_until(&command_line.args, &wanted, || Ok(Arc::clone(stop)));
    outcome.map_err(|failure: Failure| failure.to_string())
}

/// The equivalent command line.
fn words(order: &Order) -> Vec<String> {
    let mut words = vec!["jjleak".to_owned(), "--pid".to_owned(), order.pid.to_string()];
    words.extend(["--settle".to_owned(), order.settle.as_secs_f64().to_string()]);
    if order.sample_bytes > 0 {
        words.extend(["--sample-bytes".to_owned(), order.sample_bytes.to_string()]);
    } else if let Some(percent) = order.max_overhead {
        // For samples, the daemon checks the cost in each profile.
        words.extend(["--max-overhead".to_owned(), percent.to_string()]);
    }
    words.push(order.snapshot.as_secs_f64().to_string());
    words
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::processes::Pid;
    use crate::profile::Sampling;

    #[test]
    fn what_is_ordered_is_what_the_command_line_says() {
        let mut order = Order {
            pid: Pid::new(42).unwrap(),
            start_time: 1,
            settle: Duration::from_secs(30),
            snapshot: Duration::from_millis(1500),
            sample_bytes: 0,
            max_overhead: None,
        };
        let args = |order: &Order| CommandLine::try_parse_from(words(order)).unwrap().args;
        let parsed = args(&order);
        assert_eq!(
            (parsed.pid.as_slice(), parsed.settle, parsed.interval),
            (&[42][..], order.settle, order.snapshot)
        );
        assert!(parsed.wants_verdicts());
        assert_eq!(parsed.coverage().unwrap().sampling, Sampling::Off);
        assert_eq!(parsed.max_overhead, None);
        let bounded = Order { max_overhead: Some(2.5), ..order };
        assert_eq!(args(&bounded).max_overhead, Some(2.5));
        order.sample_bytes = 512 << 10;
        order.max_overhead = Some(2.5);
        assert_eq!(args(&order).coverage().unwrap().sampling, Sampling::Bytes(512 << 10));
        assert_eq!(args(&order).max_overhead, None);
    }
}
