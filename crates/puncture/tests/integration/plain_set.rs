//! The function against a plain map from index to value, and its snapshots.

use std::collections::HashMap;

use firstflight_puncture::{InvalidSnapshot, Limits, PuncturableFunction, TicketIndex, Value};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// Issue this number of indices.
    Issue(u16),
    /// Puncture an index that was issued.
    Puncture(u32),
    /// Puncture an index of an unknown epoch.
    PunctureUnknown(u8, u32),
    /// Puncture a run of indices.
    PunctureRun(u32, u16),
    /// Puncture each index at a multiple of this stride.
    PunctureEvery(u16),
    Wait(u16),
    SetClockBack(u16),
    Expire,
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u16..300).prop_map(Step::Issue),
        1 => (20_000u16..40_000).prop_map(Step::Issue),
        8 => any::<u32>().prop_map(Step::Puncture),
        1 => any::<(u8, u32)>().prop_map(|(epoch, number)| Step::PunctureUnknown(epoch, number)),
        3 => (any::<u32>(), 1u16..500).prop_map(|(from, count)| Step::PunctureRun(from, count)),
        2 => (2u16..9).prop_map(Step::PunctureEvery),
        2 => (1u16..80).prop_map(Step::Wait),
        1 => (1u16..200).prop_map(Step::SetClockBack),
        2 => Just(Step::Expire),
        2 => Just(Step::Restore),
    ]
}

const LIMITS: Limits = Limits { epoch_seconds: 60, max_bytes: 256 << 20 };
const LIFETIME: u64 = 100;

/// The expected state of the function.
#[derive(Default)]
struct Model {
    /// In order, with the time of issue.
    issued: Vec<(TicketIndex, u64)>,
    values: HashMap<TicketIndex, Value>,
    punctured: u64,
}

impl Model {
    fn puncture(&mut self, function: &mut PuncturableFunction, at: usize) {
        let index = self.issued[at].0;
        let is_known = self.values.remove(&index).is_some();
        assert_eq!(function.puncture(&index), is_known, "{index:?}");
        self.punctured += u64::from(is_known);
    }

    /// An epoch expires as a whole, when its last index does.
    fn expire(&mut self, before: u64) {
        let mut last_issued = HashMap::new();
        for (index, at) in &self.issued {
            let last = last_issued.entry(index.epoch).or_insert(*at);
            *last = (*last).max(*at);
        }
        self.values.retain(|index, _| last_issued[&index.epoch] >= before);
    }

    fn check(&self, function: &mut PuncturableFunction, every: usize) {
        for (index, _) in self.issued.iter().step_by(every) {
            assert_eq!(function.evaluate(index), self.values.get(index).cloned(), "{index:?}");
        }
        assert_eq!(function.counts().outstanding, self.values.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// After any sequence of steps, an index has its value exactly until it was punctured or has
    /// expired.
    #[test]
    fn the_function_agrees_with_a_plain_map(steps in prop::collection::vec(step(), 1..30)) {
        let mut function = PuncturableFunction::new(LIMITS);
        let (mut model, mut now) = (Model::default(), 1_000_000);
        for step in steps {
            let count = model.issued.len();
            match step {
                Step::Issue(count) => {
                    for _ in 0..count {
                        let (index, value) = function.issue(now);
                        model.issued.push((index, now));
                        prop_assert!(model.values.insert(index, value).is_none());
                    }
                }
                Step::Puncture(at) if count > 0 => model.puncture(&mut function, at as usize % count),
                Step::PunctureRun(from, run) => {
                    let from = from as usize % count.max(1);
                    for at in from..count.min(from + usize::from(run)) {
                        model.puncture(&mut function, at);
                    }
                }
                Step::PunctureEvery(stride) => {
                    for at in (0..count).step_by(stride.into()) {
                        model.puncture(&mut function, at);
                    }
                }
                Step::PunctureUnknown(byte, number) => {
                    let index = TicketIndex { epoch: [byte; 8], number };
                    prop_assert!(!function.puncture(&index) && function.evaluate(&index).is_none());
                }
                Step::Wait(seconds) => now += u64::from(seconds),
                Step::SetClockBack(seconds) => now -= u64::from(seconds),
                Step::Expire => {
                    function.expire_before(now - LIFETIME);
                    model.expire(now - LIFETIME);
                }
                Step::Restore => {
                    let bytes = function.snapshot();
                    function = PuncturableFunction::restore(&bytes, LIMITS).unwrap();
                    prop_assert_eq!(&*function.snapshot(), &*bytes);
                    model.punctured = 0;
                }
                Step::Puncture(_) => {}
            }
            prop_assert_eq!(function.counts().punctured, model.punctured);
            model.check(&mut function, 97);
        }
        model.check(&mut function, 1);
        // An index that was never issued has no value.
        if let Some((last, _)) = model.issued.last() {
            let next = TicketIndex { number: last.number + 1, ..*last };
            prop_assert!(function.evaluate(&next).is_none() && !function.puncture(&next));
        }
    }

    #[test]
    fn changed_snapshots_are_rejected_or_consistent(
        used in prop::collection::vec(0u32..400, 0..40),
        (at, byte) in any::<(prop::sample::Index, u8)>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut function = PuncturableFunction::new(LIMITS);
        let issued: Vec<_> = (0..400).map(|at| function.issue(at / 5).0).collect();
        for at in used {
            function.puncture(&issued[at as usize]);
        }
        let mut bytes = function.snapshot().to_vec();
        let cut = cut.index(bytes.len());
        prop_assert_eq!(
            PuncturableFunction::restore(&bytes[..cut], LIMITS).map(drop), Err(InvalidSnapshot)
        );
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(mut other) = PuncturableFunction::restore(&bytes, LIMITS) {
            prop_assert_eq!(&other.snapshot()[..], &bytes[..]);
            other.issue(100);
            for index in &issued {
                other.puncture(index);
            }
        }
        bytes.push(0);
        prop_assert!(PuncturableFunction::restore(&bytes, LIMITS).is_err());
    }
}

#[test]
fn a_snapshot_holds_nothing_of_a_punctured_index() {
    let mut function = PuncturableFunction::new(LIMITS);
    let issued: Vec<_> = (0..64).map(|_| function.issue(0)).collect();
    let before = function.snapshot();
    let (index, value) = &issued[9];
    function.puncture(index);
    let after = function.snapshot();
    assert!(
        PuncturableFunction::restore(&before, LIMITS).unwrap().evaluate(index)
            == Some(value.clone())
    );
    let mut thief = PuncturableFunction::restore(&after, LIMITS).unwrap();
    assert_eq!(thief.evaluate(index), None);
    for (other, value) in issued.iter().filter(|(other, _)| other != index) {
        assert_eq!(thief.evaluate(other).as_ref(), Some(value));
    }
}

#[test]
fn a_count_beyond_the_bytes_allocates_nothing() {
    let header = [&b"ffpunct1"[..], &[0xff; 4]].concat();
    assert!(PuncturableFunction::restore(&header, LIMITS).is_err());
    let one_epoch = [&b"ffpunct1"[..], &[0, 0, 0, 1], &[0; 24], &[0xff; 8], &[0; 18]].concat();
    assert!(PuncturableFunction::restore(&one_epoch, LIMITS).is_err());
}
