"""A grid of Flower without processes: ClientApps are called when a message is sent, and reply later."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid


def give_identity():
    """Let messages be made in this process, as Flower does for a ServerApp. Older versions need nothing."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class DirectGrid(Grid):
    """Nodes with numbers from 11 on. A node's reply arrives after so many looks for replies."""

    def __init__(self, app, looks, run_config=None):
        give_identity()
        self._app, self._looks, self._number = app, looks, 0
        self.contexts = {
            11 + part: Context(
                1,
                11 + part,
                {"partition-id": part, "num-partitions": len(looks)},
                RecordDict(),
                run_config or {},
            )
            for part in range(len(looks))
        }
        self.messages, self._replies = [], {}

    def set_run(self, run):
        pass

    @property
    def run(self):
        return None

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        sent = []
        for message in messages:
            self._number += 1
            message.metadata.__dict__["_message_id"] = str(self._number)
            self.messages.append(message)
            node = message.metadata.dst_node_id
            try:
                reply = self._app(message, self.contexts[node])
            except Exception as error:  # as a SuperNode does
                reply = Message(Error(code=0, reason=f"{type(error)}:<{error}>"), reply_to=message)
            self._replies[str(self._number)] = [self._looks[node - 11], reply]
            sent.append(str(self._number))
        return sent

    def pull_messages(self, message_ids):
        found = []
        for identity in message_ids:
            waiting = self._replies[identity]
            waiting[0] -= 1
            if waiting[0] <= 0:
                found.append(self._replies.pop(identity)[1])
        return found

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
