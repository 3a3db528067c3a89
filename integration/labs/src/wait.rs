//! The one way to wait in a lab: look, and look again until a deadline.

use std::time::{Duration, Instant};

use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Looks until `look` answers `Ok`, or `limit` is over.
///
/// `look` answers `Err(what it saw)` for "not yet"; the last of these stands in the error. Needs real time: a runtime with a
/// paused clock would run through the limit at once.
pub async fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> std::result::Result<T, String>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match look().await {
            Ok(found) => return Ok(found),
            Err(seen) => seen,
        };
        if start.elapsed() >= limit {
            return Err(Error::Deadline { what: what.to_owned(), limit, last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_once_the_look_does() {
        let mut left = 3;
        let found = wait_until("three looks", Duration::from_secs(5), async || {
            left -= 1;
            if left == 0 { Ok("seen") } else { Err(format!("{left} left")) }
        })
        .await;
        assert_eq!(found.unwrap(), "seen");
    }

    #[tokio::test]
    async fn tells_what_it_saw_last() {
        let never =
            wait_until::<()>("a miracle", Duration::from_millis(1), async || Err("rain".to_owned())).await;
        let said = never.unwrap_err().to_string();
        assert!(said.contains("a miracle") && said.ends_with("last seen: rain"), "{said}");
    }
}
