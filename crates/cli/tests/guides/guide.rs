//! What of a guide is run, where, and what it has to say.

use crate::output::Output;

/// A guide, read.
pub(crate) struct Guide {
    pub(crate) name: String,
    /// Those that it takes, by name.
    pub(crate) machines: Vec<String>,
    /// Whether they can reach Let's Encrypt.
    pub(crate) lets_encrypt: bool,
    pub(crate) blocks: Vec<Block>,
}

/// Commands that are typed together.
pub(crate) struct Block {
    /// Of the fence, from 1.
    pub(crate) line: usize,
    pub(crate) script: String,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Run {
        /// Places in the guide's machines, in the order of running.
        on: Vec<usize>,
        output: Option<Output>,
    },
    /// What the reader copies from machine to machine: files in root's home.
    Carry { files: Vec<String>, from: usize, to: Vec<usize> },
    /// Nobody can here, for a reason.
    NotRun(String),
}

impl Guide {
    /// # Errors
    /// The line, and what cannot be understood there.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut guide = Self {
            name: name.to_owned(),
            machines: Vec::new(),
            lets_encrypt: false,
            blocks: Vec::new(),
        };
        let mut words = Words::default();
        let mut lines = (1..).zip(text.lines());
        while let Some((number, line)) = lines.next() {
            if let Some(comment) = line.strip_prefix("<!-- ") {
                let comment = comment.strip_suffix(" -->");
                let comment = comment.ok_or(format!("{number}: a comment without its end"))?;
                guide
                    .take(number, comment, &mut words)
                    .map_err(|why| format!("{number}: {why}"))?;
            } else if let Some(language) = line.strip_prefix("```") {
                let fenced: Vec<_> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|&line| line != "```")
                    .collect();
                match language {
                    "sh" => {
                        guide.blocks.push(words.block(number, &fenced, guide.machines.len())?)
                    }
                    "text" if words.after_commands => guide.expect(&fenced, &words.differ),
                    _ => {}
                }
                words = Words { after_commands: language == "sh", ..Words::default() };
            } else if !line.is_empty() {
                words.after_commands = false;
            }
        }
        if guide.machines.is_empty() {
            guide.machines.push("server".to_owned());
        }
        if guide.blocks.is_empty() {
            return Err("1: no commands".to_owned());
        }
        Ok(guide)
    }

    /// Lines of the blocks that are not run, with the reasons.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = (usize, &str)> {
        self.blocks.iter().filter_map(|block| match &block.kind {
            Kind::NotRun(reason) => Some((block.line, reason.as_str())),
            Kind::Run { .. } | Kind::Carry { .. } => None,
        })
    }

    fn take(&mut self, line: usize, comment: &str, words: &mut Words) -> Result<(), String> {
        let (what, rest) = comment.split_once(": ").unwrap_or((comment, ""));
        match what {
            "machines" if self.blocks.is_empty() => {
                self.machines = rest.split(' ').map(str::to_owned).collect();
            }
            "lets-encrypt" => self.lets_encrypt = true,
            "on" => words.on = self.places(rest)?,
            "carry" => {
                let (files, machines) = rest.split_once(" from ").ok_or("from where?")?;
                let (from, to) = machines.split_once(" to ").ok_or("to where?")?;
                let &[from] = self.places(from)?.as_slice() else {
                    return Err("from which?".to_owned());
                };
                let files = files.split(' ').map(str::to_owned).collect();
                let kind = Kind::Carry { files, from, to: self.places(to)? };
                self.blocks.push(Block { line, script: String::new(), kind });
            }
            "not run" if !rest.is_empty() => words.not_run = Some(rest.to_owned()),
            "may differ" => words.differ = rest.split(' ').map(str::to_owned).collect(),
            _ => return Err(format!("what is `{comment}`?")),
        }
        Ok(())
    }

    /// Machines by their names.
    fn places(&self, names: &str) -> Result<Vec<usize>, String> {
        let place = |name| self.machines.iter().position(|machine| machine == name);
        names.split(' ').map(|name| place(name).ok_or(format!("no machine {name}"))).collect()
    }

    fn expect(&mut self, lines: &[&str], differ: &[String]) {
        let last = self.blocks.last_mut();
        if let Some(Block { kind: Kind::Run { output, .. }, .. }) = last {
            *output = Some(Output::new(lines, differ));
        }
    }
}

/// What comments have said of the next block.
#[derive(Default)]
struct Words {
    on: Vec<usize>,
    not_run: Option<String>,
    differ: Vec<String>,
    /// Whether there were but empty lines and comments since a block of commands.
    after_commands: bool,
}

impl Words {
    fn block(&mut self, line: usize, script: &[&str], machines: usize) -> Result<Block, String> {
        let on = std::mem::take(&mut self.on);
        let kind = match self.not_run.take() {
            Some(reason) => Kind::NotRun(reason),
            None if on.is_empty() && machines > 1 => {
                return Err(format!("{line}: on which machine?"));
            }
            None => Kind::Run { on: if on.is_empty() { vec![0] } else { on }, output: None },
        };
        Ok(Block { line, script: script.join("\n"), kind })
    }
}

/// How guides are read.
pub(crate) fn rules() {
    let text = "# A\n<!-- machines: a b -->\n<!-- on: b a -->\n```sh\nx\ny\n```\n\n\
                <!-- may differ: 5 -->\n```text\nz 5\n```\n\n<!-- not run: no -->\n```sh\nw\n```\n\
                then\n```text\nq\n```\n";
    let guide = Guide::parse("g", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(guide.machines, ["a", "b"]);
    assert_eq!((guide.blocks[0].line, guide.blocks[0].script.as_str()), (4, "x\ny"));
    let Kind::Run { on, output: Some(output) } = &guide.blocks[0].kind else { panic!("{text}") };
    assert_eq!(on, &[1, 0]);
    assert!(output.compare("z 7\n").is_ok());
    assert_eq!(guide.left_out().collect::<Vec<_>>(), [(15, "no")]);

    for (wrong, says) in [
        ("prose", "1: no commands"),
        ("<!-- on: c -->\n", "1: no machine c"),
        ("<!-- sometimes -->\n", "1: what is `sometimes`?"),
        ("<!-- machines: a b -->\n```sh\nx\n```\n", "2: on which machine?"),
    ] {
        assert_eq!(Guide::parse("g", wrong).err().as_deref(), Some(says));
    }
    // Text behind prose is no output of commands.
    let guide = Guide::parse("g", "```sh\nx\n```\nprose\n```text\ny\n```\n");
    let guide = guide.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(guide.blocks[0].kind, Kind::Run { output: None, .. }));
}
