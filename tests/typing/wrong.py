"""Mistakes that mypy and pyright must both find: one in each line that ends in `# error`. It is not run."""

import tardigrad as td

td.Local(lrr=1)  # error
td.Local(lr="fast")  # error
td.Buffer(sise=5)  # error
td.FedBuf()  # error
td.FedBuff(momentum=td.LogNormal())  # error
td.Config(stop=td.Local())  # error
td.run(stopp=td.Stop(trips=1))  # error
td.run(stop=td.Local())  # error
td.run(algorithm=td.LogNormal())  # error
td.run(seed="one")  # error
td.run(workers=1.5)  # error
td.serve(td.Config())  # error
td.serve(td.Config(), out="live", port=7433)  # error
print(td.run().acuracy)  # error
x: str = td.run().accuracy  # error
print(td.load_config("run.toml").local.lrr)  # error
