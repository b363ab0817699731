//! How much may be sent a second time.

use crate::RetryRule;

/// A share of the requests, with a burst: a pool that fails all that it gets is sent that share
/// more, and not a multiple.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    percent: u64,
    most: u64,
    /// In hundredths of a retry.
    left: u64,
}

impl Budget {
    /// Full at the start.
    pub(crate) fn new(rule: &RetryRule) -> Self {
        let most = u64::from(rule.burst) * 100;
        Self { percent: rule.percent.into(), most, left: most }
    }

    /// A request has come.
    pub(crate) fn deposit(&mut self) {
        self.left = (self.left + self.percent).min(self.most);
    }

    /// Whether one may be sent again.
    pub(crate) fn withdraw(&mut self) -> bool {
        match self.left.checked_sub(100) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_more_than_the_burst_and_the_share(
            events in prop::collection::vec(any::<bool>(), 0..2000),
            percent in 0u32..100,
            burst in 0u32..50,
        ) {
            let mut budget = Budget::new(&RetryRule { tries: 2, percent, burst });
            let (mut requests, mut retries) = (0u64, 0u64);
            for request in events {
                if request {
                    budget.deposit();
                    requests += 1;
                } else if budget.withdraw() {
                    retries += 1;
                }
                prop_assert!(retries * 100 <= u64::from(burst) * 100 + requests * u64::from(percent));
            }
        }
    }

    #[test]
    fn what_is_spent_comes_back_with_requests() {
        let mut budget = Budget::new(&RetryRule { tries: 2, percent: 20, burst: 1 });
        assert!(budget.withdraw());
        (0..4).for_each(|_| budget.deposit());
        assert!(!budget.withdraw());
        budget.deposit();
        assert!(budget.withdraw());
    }
}
