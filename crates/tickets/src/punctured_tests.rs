use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

const NOW: Duration = Duration::from_secs(1_000_000);

fn session(opened: OpenOutcome) -> Option<Vec<u8>> {
    match opened {
        OpenOutcome::Session { content, sealed_at } => {
            assert_eq!(sealed_at, NOW);
            Some(content.to_vec())
        }
        _ => None,
    }
}

#[test]
fn a_ticket_opens_once() {
    let tickets = PuncturedTickets::new(Limits::default());
    let (first, second) = (tickets.seal(b"one", NOW).unwrap(), tickets.seal(b"two", NOW).unwrap());
    assert_eq!(first.len(), 3 + PuncturedTickets::OVERHEAD);
    assert_eq!(session(tickets.open(&first, |_| true)).as_deref(), Some(&b"one"[..]));
    assert_eq!(tickets.open(&first, |_| true), OpenOutcome::Used);
    assert_eq!(session(tickets.open(&second, |_| true)).as_deref(), Some(&b"two"[..]));
    let counts = tickets.counts().unwrap();
    assert_eq!((counts.outstanding, counts.punctured), (0, 2));
}

#[test]
fn a_ticket_that_was_only_seen_or_changed_is_not_used_up() {
    let tickets = PuncturedTickets::new(Limits::default());
    let ticket = tickets.seal(b"session", NOW).unwrap();
    assert_eq!(tickets.open(&ticket, |_| false), OpenOutcome::Unproven);
    for at in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[at] ^= 1;
        let opened = tickets.open(&changed, |_| true);
        assert!(matches!(opened, OpenOutcome::Unknown | OpenOutcome::Forged), "{at}: {opened:?}");
    }
    for length in 0..ticket.len() {
        assert_eq!(session(tickets.open(&ticket[..length], |_| true)), None);
    }
    assert!(session(tickets.open(&ticket, |session| session == b"session")).is_some());
}

#[test]
fn of_many_threads_with_one_ticket_exactly_one_wins() {
    let tickets = PuncturedTickets::new(Limits::default());
    for _ in 0..100 {
        let ticket = tickets.seal(b"session", NOW).unwrap();
        let (wins, start) = (AtomicUsize::new(0), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    let won = session(tickets.open(&ticket, |_| true)).is_some();
                    wins.fetch_add(won.into(), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(wins.into_inner(), 1);
    }
}

/// The second of two copies opens the ticket before the first has used it up.
#[test]
fn the_slower_of_two_copies_loses() {
    let tickets = PuncturedTickets::new(Limits::default());
    let ticket = tickets.seal(b"session", NOW).unwrap();
    let slower = tickets.open(&ticket, |_| {
        assert!(session(tickets.open(&ticket, |_| true)).is_some());
        true
    });
    assert_eq!(slower, OpenOutcome::Used);
}

#[test]
fn handed_over_keys_work_only_in_the_new_process() {
    let (old, new) =
        (PuncturedTickets::new(Limits::default()), PuncturedTickets::new(Limits::default()));
    let (used, unused) = (old.seal(b"used", NOW).unwrap(), old.seal(b"unused", NOW).unwrap());
    assert!(session(old.open(&used, |_| true)).is_some());
    let snapshot = old.hand_off().unwrap();
    assert_eq!(old.open(&unused, |_| true), OpenOutcome::HandedOver);
    assert!(old.seal(b"more", NOW).is_none() && old.hand_off().is_none());
    assert!(old.counts().is_none());
    new.take_over(&snapshot).unwrap();
    assert_eq!(new.open(&used, |_| true), OpenOutcome::Used);
    assert!(session(new.open(&unused, |_| true)).is_some());
    assert_eq!(new.take_over(&snapshot[1..]), Err(InvalidSnapshot));
    old.replace_keys();
    assert_eq!(old.open(&unused, |_| true), OpenOutcome::Unknown);
}

/// The keys are handed over between opening and using up: the ticket is not used, and the other
/// process decides.
#[test]
fn a_ticket_that_is_open_during_the_handoff_is_not_used_up() {
    let tickets = PuncturedTickets::new(Limits::default());
    let ticket = tickets.seal(b"session", NOW).unwrap();
    let mut snapshot = None;
    let opened = tickets.open(&ticket, |_| {
        snapshot = tickets.hand_off();
        true
    });
    assert_eq!(opened, OpenOutcome::HandedOver);
    tickets.take_over(&snapshot.unwrap()).unwrap();
    assert!(session(tickets.open(&ticket, |_| true)).is_some());
}

#[test]
fn tickets_expire_with_their_epoch() {
    let tickets = PuncturedTickets::new(Limits { epoch_seconds: 60, ..Limits::default() });
    let ticket = tickets.seal(b"session", NOW).unwrap();
    tickets.expire_before(NOW);
    tickets.expire_before(NOW + Duration::from_secs(1));
    assert_eq!(tickets.open(&ticket, |_| true), OpenOutcome::Unknown);
    assert_eq!(tickets.counts().unwrap().expired, 1);
}
