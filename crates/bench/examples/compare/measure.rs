//! Drives a server, and reads its CPU time before and after.

use std::ops::ControlFlow;

use firstflight_bench::{
    Datagrams, ErrorCount, Exchange, KeepAliveConfig, Limit, LoadConfig, LoadHandshake, Model, run,
    run_keep_alive,
};
use firstflight_tls::{CipherPolicy, Trust};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

use crate::arguments::Arguments;
use crate::cells::Cell;
use crate::seconds;
use crate::servers::Running;

/// The cost of a cell for a server and for the load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) completed: u64,
    pub(crate) seconds: f64,
    /// Microseconds of the server's CPU for each connection or request.
    pub(crate) user_us: f64,
    pub(crate) system_us: f64,
    /// Microseconds of the load's CPU for each connection or request.
    pub(crate) client_us: f64,
    /// The share of the time in which the server was busy: 1 if it used all of its core.
    pub(crate) server_busy: f64,
    /// The same for the load, including the upstream on its core.
    pub(crate) client_busy: f64,
    /// Warm-up and ticket-fetching full handshakes. Their cost is subtracted, except in cells of full
    /// handshakes, which count them as completed.
    pub(crate) refills: u64,
    /// Datagrams per connection over QUIC.
    pub(crate) datagrams: Option<Datagrams<f64>>,
}

impl Cell {
    /// Drives a server, and reads its CPU time before and after. `full` is the measured cost of
    /// full handshakes, which is subtracted for those that fetch tickets.
    pub(crate) fn measure(
        &self,
        server: &Running,
        full: Option<&Measured>,
        arguments: &Arguments,
    ) -> Result<Measured, String> {
        let limit = Limit::Time(seconds(arguments.seconds));
        let ciphers = CipherPolicy {
            tls13_ciphers: Some("TLS_AES_128_GCM_SHA256".to_owned()),
            groups: Some("X25519".to_owned()),
            ..CipherPolicy::default()
        };
        let (mut before, mut client_before) = (server.cpu_time(), own_micros());
        match self {
            Self::Connection(transport, kind) => {
                let path = self.content().path();
                let config = LoadConfig {
                    transport: *transport,
                    kind: *kind,
                    ciphers,
                    exchange: Exchange::Get {
                        authority: server.address.to_string(),
                        path,
                        client_closes: arguments.client_closes,
                    },
                    trust: Trust::Anyone,
                    model: Model::Closed { connections: arguments.connections },
                    limit,
                    ..LoadConfig::new(vec![server.address], "localhost")
                };
                let result = run(&config, |_| ControlFlow::Continue(()));
                let result = result.map_err(|error| error.to_string())?;
                let completed = match kind {
                    LoadHandshake::Full => result.handshakes.full,
                    LoadHandshake::Resumed => result.handshakes.resumed,
                    LoadHandshake::ZeroRtt => result.handshakes.early_accepted,
                };
                check_purity(completed, result.completed, &result.errors)?;
                check_statuses(&result.statuses)?;
                check_length(result.response_bytes, result.completed, self.content().bytes())?;
                // The warm-up makes full handshakes, too.
                let others = result.refills + result.warm_up;
                let all = server.cpu_time().since(before);
                let (completed, used) = match kind {
                    LoadHandshake::Full => (completed + others, all),
                    _ => (completed, subtract_handshakes(all, others, full)?),
                };
                let measured = Measured::new(
                    completed,
                    result.seconds,
                    used,
                    own_micros() - client_before,
                    others,
                );
                Ok(Measured {
                    // The handshakes for tickets kept the core busy, too.
                    server_busy: busy_share(all.0 + all.1, result.seconds),
                    client_busy: result.client_busy,
                    datagrams: result.datagrams,
                    ..measured
                })
            }
            Self::KeepAlive(http, content) => {
                let config = KeepAliveConfig {
                    address: server.address,
                    path: content.path(),
                    credentials: None,
                    http: *http,
                    ciphers,
                    connections: content.connections(arguments.connections),
                    limit,
                };
                let result = run_keep_alive(&config, || {
                    before = server.cpu_time();
                    client_before = own_micros();
                });
                let result = result.map_err(|error| error.to_string())?;
                let used = server.cpu_time().since(before);
                check_length(result.bytes, result.completed, content.bytes())?;
                Ok(Measured::new(
                    result.completed,
                    result.seconds,
                    used,
                    own_micros() - client_before,
                    0,
                ))
            }
        }
    }
}

impl Measured {
    /// From user and system time of the server, and the load's time, in microseconds.
    fn new(
        completed: u64,
        seconds: f64,
        (user, system): (f64, f64),
        client: f64,
        refills: u64,
    ) -> Self {
        let each = |micros: f64| micros / completed.max(1) as f64;
        Self {
            completed,
            seconds,
            user_us: each(user),
            system_us: each(system),
            client_us: each(client),
            server_busy: busy_share(user + system, seconds),
            client_busy: busy_share(client, seconds),
            refills,
            datagrams: None,
        }
    }
}

/// User and system time without that of full handshakes.
fn subtract_handshakes(
    (user, system): (f64, f64),
    handshakes: u64,
    full: Option<&Measured>,
) -> Result<(f64, f64), String> {
    if handshakes == 0 {
        return Ok((user, system));
    }
    let full = full.ok_or("what a full handshake costs is not known; add that cell")?;
    let remaining =
        (user - handshakes as f64 * full.user_us, system - handshakes as f64 * full.system_us);
    match remaining.0 > 0.0 && remaining.1 >= 0.0 {
        true => Ok(remaining),
        false => Err(format!("nothing is left beside {handshakes} handshakes for tickets")),
    }
}

/// CPU time as a share of elapsed time.
fn busy_share(micros: f64, seconds: f64) -> f64 {
    micros / 1e6 / seconds.max(f64::MIN_POSITIVE)
}

/// Checks that most connections had the kind of handshake that the cell is named after.
fn check_purity(made: u64, completed: u64, errors: &[ErrorCount]) -> Result<(), String> {
    let failed: u64 = errors.iter().map(|error| error.count).sum();
    let all = completed + failed;
    if made > 0 && made as f64 >= MIN_PURITY * all as f64 {
        return Ok(());
    }
    let why = errors.first().map_or_else(String::new, |error| {
        format!("; {failed} failed: {}: {}", error.kind.name(), error.example)
    });
    Err(format!("only {made} of {all} connections were of this kind{why}"))
}

const MIN_PURITY: f64 = 0.9;

/// Checks that every response is the file: other statuses are not the same work.
fn check_statuses(statuses: &[(u16, u64)]) -> Result<(), String> {
    match statuses.iter().find(|(status, _)| *status != 200) {
        Some((status, count)) => Err(format!("{count} responses with status {status}")),
        None => Ok(()),
    }
}

/// Checks that responses are on average at least as long as the file.
fn check_length(received: u64, responses: u64, bytes: u64) -> Result<(), String> {
    match received / responses.max(1) {
        each if each < bytes => Err(format!("responses of {each} bytes instead of {bytes}")),
        _ => Ok(()),
    }
}

fn own_micros() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("our own usage");
    (usage.user_time() + usage.system_time()).num_microseconds() as f64
}

#[cfg(test)]
mod tests {
    use firstflight_bench::ErrorKind;

    use super::*;

    #[test]
    fn the_cost_of_handshakes_for_tickets_is_subtracted() {
        let full = Measured::new(10, 1.0, (1_000.0, 500.0), 0.0, 0);
        assert_eq!(subtract_handshakes((900.0, 400.0), 4, Some(&full)), Ok((500.0, 200.0)));
        assert_eq!(subtract_handshakes((900.0, 400.0), 0, None), Ok((900.0, 400.0)));
        assert!(subtract_handshakes((900.0, 400.0), 4, None).is_err());
        assert!(subtract_handshakes((900.0, 400.0), 9, Some(&full)).is_err());
    }

    #[test]
    fn a_run_with_other_handshakes_or_failures_is_rejected() {
        let failed = |count| {
            [ErrorCount { kind: ErrorKind::Reset, count, example: "by the server".to_owned() }]
        };
        assert!(check_purity(95, 100, &[]).is_ok() && check_purity(95, 100, &failed(5)).is_ok());
        assert!(check_purity(50, 100, &[]).unwrap_err().contains("50 of 100"));
        let reason = check_purity(95, 100, &failed(50)).unwrap_err();
        assert!(
            reason.ends_with(
                "95 of 150 connections were of this kind; 50 failed: reset: by the server"
            ),
            "{reason}"
        );
        assert!(check_purity(0, 0, &[]).is_err());
    }

    #[test]
    fn responses_that_are_not_the_file_are_rejected() {
        assert_eq!(check_statuses(&[(200, 100)]), Ok(()));
        assert!(check_statuses(&[(200, 99), (301, 1)]).unwrap_err().contains("status 301"));
        assert_eq!(check_length(102_400, 100, 1024), Ok(()));
        assert!(
            check_length(102_300, 100, 1024).unwrap_err().contains("1023 bytes instead of 1024")
        );
        assert!(check_length(0, 0, 1).is_err());
    }
}
