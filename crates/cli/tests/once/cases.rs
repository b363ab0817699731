//! All cases, by name.

use crate::clock_steps::{After, clock_step};
use crate::copied_random;
use crate::plan::Plan;
use crate::report::{Label, Row};
use crate::scenarios::{
    self, ChangeMethod, node_by_node, reconnect, restart, shift, switch_and_back,
};
use crate::settings::Switch;
use crate::stage::Servers;
use crate::store_failures::{StoreFailure, store_failure};

/// One case: what happens on its servers, over one or more transports.
pub(crate) struct Case {
    /// The name, without blanks.
    pub(crate) name: String,
    /// Runs it and returns its rows of the table.
    pub(crate) run: Box<dyn FnOnce() -> Vec<Row> + Send>,
}

/// The cases of the plan.
pub(crate) fn all(plan: &Plan) -> Vec<Case> {
    let mut cases = Cases { plan: plan.clone(), all: Vec::new() };
    for (servers, stage) in [
        (Servers::OnePunctured, &scenarios::PUNCTURED),
        (Servers::One, &scenarios::ONE),
        (Servers::NodesByStore(3), &scenarios::THREE),
    ] {
        let far = if servers == Servers::OnePunctured { plan.far_shifts() } else { &[] };
        for &by in plan.shifts().iter().chain(far) {
            let name = format!("shift_{}{}", if by < 0 { "less_" } else { "" }, by.abs());
            cases.add(name, servers, move |plan, label| shift(plan, stage, label, by));
        }
        cases.add("reconnect", servers, move |plan, label| reconnect(plan, stage, label));
        let name = "others_client_random";
        cases.add(name, servers, move |_, label| copied_random::client_random(stage, label));
    }
    for switch in Switch::ALL {
        for &shift in plan.fresh_shifts() {
            let name = |by: &str| format!("{}_{by}_{shift}", switch.name());
            for servers in [Servers::OnePunctured, Servers::One, Servers::OneWithStore] {
                cases.add(name("reload"), servers, move |plan, label| {
                    switch_and_back(plan, label, ChangeMethod::Reload, switch, shift)
                });
                cases.add(name("upgrade"), servers, move |plan, label| {
                    switch_and_back(plan, label, ChangeMethod::Upgrade, switch, shift)
                });
            }
            cases.add(name("node"), Servers::NodesByFile(3), move |plan, label| {
                node_by_node(plan, label, switch, shift)
            });
        }
    }
    for servers in [Servers::OnePunctured, Servers::OneWithKeyFile, Servers::OneWithStore] {
        for &shift in [0].iter().chain(plan.restart_shifts()) {
            let name = format!("restart_{shift}");
            cases.add(name, servers, move |plan, label| restart(plan, label, shift));
        }
    }
    for &step in plan.clock_steps() {
        for after in After::ALL {
            let way = if step < 0 { "behind" } else { "ahead" };
            let name = format!("{way}_{}_{}", step.abs(), after.name());
            cases.add(name, Servers::OnePunctured, move |_, label| clock_step(label, step, after));
        }
    }
    for what in StoreFailure::ALL {
        let name = what.name();
        cases.add(name, Servers::NodesByStore(3), move |plan, label| {
            store_failure(plan, label, what)
        });
    }
    cases.all
}

/// Ends the servers that several cases shared.
pub(crate) fn end() {
    for shared in [&scenarios::PUNCTURED, &scenarios::ONE, &scenarios::THREE, &scenarios::NODES] {
        shared.end();
    }
    crate::stage::end_store();
}

struct Cases {
    plan: Plan,
    all: Vec<Case>,
}

impl Cases {
    fn add(
        &mut self,
        case: impl Into<String>,
        servers: Servers,
        run: impl FnOnce(&Plan, &Label) -> Vec<Row> + Send + 'static,
    ) {
        let (plan, label) = (self.plan.clone(), Label::new(case, servers));
        let name =
            format!("{}::{}", servers.name().replace(", ", "_").replace(' ', "_"), label.case);
        self.all.push(Case { name, run: Box::new(move || run(&plan, &label)) });
    }
}
