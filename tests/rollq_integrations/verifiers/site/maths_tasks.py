"""A taskset of single questions, graded by the package's own function."""

import verifiers.v1 as vf

__all__ = ["MathsTaskset"]


class MathsData(vf.TaskData):
    answer: str


class MathsTask(vf.Task[MathsData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return vf.verify_boxed_math_answer(trace.last_reply, self.data.answer)


class MathsTaskset(vf.Taskset[MathsTask]):
    def load(self) -> list[MathsTask]:
        prompt = [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": "What is 1/2 + 1/4?"},
        ]
        return [MathsTask(MathsData(prompt=prompt, answer="3/4"))]
