//! Servers of TLS libraries, which read no requests from early data: checks whether TLS accepts the
//! early data of a copy.

use std::thread;
use std::time::{Duration, Instant};

use firstflight_first_flight::{Driver, Entropy, Event, FirstFlight, FlightPlan, Hello, TcpLink};

use crate::nodes::Nodes;
use crate::peer::Peer;
use crate::row::Row;
use crate::table::{Cell, Outcome};

/// Sends a flight, completes it, and sends copies.
pub(crate) fn measure(peer: Peer, row: Row) -> Cell {
    let mut nodes = Nodes::start(peer, row);
    let epoch = Instant::now();
    let send = |nodes: &Nodes, flight: &FirstFlight| {
        let link = TcpLink::connect(nodes.address(0), RESPONSE_TIMEOUT, epoch).unwrap();
        Driver::start(flight, Box::new(link))
    };
    let hello = || Hello::new("localhost", &[]);
    let entropy = Entropy::system;
    let full = FlightPlan::full(hello()).build(epoch.elapsed(), &entropy());
    let mut first = send(&nodes, &full);
    first.wait_for(RESPONSE_TIMEOUT, |event| *event == Event::Finished).unwrap();
    first.connection().finish();
    first.flush();
    let ticket =
        first.wait_for(RESPONSE_TIMEOUT, |event| matches!(event, Event::Ticket(_))).unwrap();
    let Event::Ticket(ticket) = ticket else { unreachable!() };
    drop(first);

    if row == Row::CopyDelayed {
        // If the server's register has windows, which start with the server, this is within one.
        thread::sleep(Duration::from_secs(5));
    }
    let shift = if row == Row::Refusal { REFUSED_AGE } else { Duration::ZERO };
    let plan = FlightPlan::resume(hello(), &ticket).early_data(b"early data\n");
    let plan = plan.shift_age(shift.as_millis() as i64);
    let flight = plan.build(epoch.elapsed(), &entropy());
    let sent = Instant::now();
    let mut original = send(&nodes, &flight);
    let expected = row != Row::Refusal;
    if accepts(&mut original) != expected {
        let problem = format!("the original's early data should be accepted: {expected}");
        return Cell::undecided(peer, row, problem);
    }
    original.connection().finish();
    original.flush();
    drop(original);

    let mut evidence = vec![format!("original: early data accepted: {expected}")];
    let waits: &[u64] = match row {
        Row::CopyDelayed => &[1, 3, 5, 7, 9, 20],
        Row::ClockStep => &[0, 0],
        _ => &[0, 0, 0],
    };
    let mut accepted = 0;
    for (number, wait) in waits.iter().enumerate() {
        let wait = shift + Duration::from_secs(*wait);
        thread::sleep(wait.saturating_sub(sent.elapsed()));
        if row == Row::ClockStep {
            nodes.step_clock(number + 1);
        }
        let copy = accepts(&mut send(&nodes, &flight));
        evidence.push(format!("copy {}: early data accepted: {copy}", number + 1));
        accepted += usize::from(copy);
    }
    let (result, summary) = match accepted {
        0 => (Outcome::Once, format!("TLS accepted none of {} copies", waits.len())),
        _ => (Outcome::Again, format!("TLS accepted {accepted} of {} copies", waits.len())),
    };
    Cell {
        result,
        summary,
        evidence,
        executions: None,
        ..Cell::undecided(peer, row, String::new())
    }
}

/// Whether the server accepts the early data.
fn accepts(driver: &mut Driver) -> bool {
    let mut accepted = false;
    let finished = driver.wait_for(RESPONSE_TIMEOUT, |event| {
        accepted |= matches!(event, Event::EncryptedExtensions { early_data: true, .. });
        *event == Event::Finished
    });
    finished.is_ok() && accepted
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Beyond the freshness of both servers, which is 10 s.
const REFUSED_AGE: Duration = Duration::from_secs(12);
