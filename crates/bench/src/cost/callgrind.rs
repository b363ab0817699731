use std::collections::HashMap;

/// What callgrind counted between two dumps.
///
/// The format is that of the Callgrind manual, chapter "Callgrind Format Specification".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallgrindDump {
    /// Instructions by function, without those of the functions that it calls.
    pub instructions: HashMap<String, u64>,
    /// Number of calls by callee.
    pub calls: HashMap<String, u64>,
}

impl CallgrindDump {
    /// Reads a dump. Unknown lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut dump = Self::default();
        // Names are written once, and referred to by number later.
        let mut names: HashMap<&str, &str> = HashMap::new();
        let (mut function, mut callee) = ("", "");
        let mut inclusive = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = resolve(name, &mut names);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = resolve(name, &mut names);
            } else if let Some(count) = line.strip_prefix("calls=") {
                let count = count.split(' ').next().and_then(|count| count.parse().ok());
                *dump.calls.entry(base(callee).to_owned()).or_default() += count.unwrap_or(0u64);
                inclusive = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                // The line after `calls=` has the cost of the callee.
                if std::mem::take(&mut inclusive) {
                    continue;
                }
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
                *dump.instructions.entry(base(function).to_owned()).or_default() +=
                    cost.unwrap_or(0u64);
            }
        }
        dump
    }

    /// All instructions.
    pub fn total(&self) -> u64 {
        self.instructions.values().sum()
    }

    /// Calls of any of these functions.
    pub fn calls_of(&self, functions: &[&str]) -> u64 {
        functions.iter().filter_map(|name| self.calls.get(*name)).sum()
    }
}

fn resolve<'a>(name: &'a str, names: &mut HashMap<&'a str, &'a str>) -> &'a str {
    let Some((number, text)) = name.split_once(')') else { return name };
    match text.trim_start() {
        "" => names.get(number).copied().unwrap_or_default(),
        text => {
            names.insert(number, text);
            text
        }
    }
}

/// A function's name without the depth of its recursion (`name'2`).
fn base(name: &str) -> &str {
    match name.rsplit_once('\'') {
        Some((base, depth)) if depth.chars().all(|c| c.is_ascii_digit()) => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "\
version: 1
events: Ir
summary: 160

ob=(1) /usr/bin/server
fl=(1) ???
fn=(1) serve
0 20
cob=(2) /lib/libc.so.6
cfn=(2) malloc
calls=3 0
0 90
+1 10

ob=(2)
fn=(2)
0 90
cfn=(1)
calls=1 0
* 30

fn=(3) walk'2
0 40
";

    #[test]
    fn costs_are_those_of_the_function_itself() {
        let dump = CallgrindDump::parse(DUMP);
        let expected = [("serve", 30), ("malloc", 90), ("walk", 40)];
        assert_eq!(dump.instructions, expected.map(|(name, n)| (name.to_owned(), n)).into());
        assert_eq!(dump.total(), 160);
    }

    #[test]
    fn calls_are_counted_by_callee() {
        let dump = CallgrindDump::parse(DUMP);
        assert_eq!(dump.calls_of(&["malloc", "calloc"]), 3);
        assert_eq!(dump.calls_of(&["serve"]), 1);
    }
}
